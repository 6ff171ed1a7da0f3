"""Wraps Keras optimizers, so that they compute the same updates on any number of replicas."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from replicator.errors import UsageError, above_zero, at_least_one, nearest
from replicator.internals.keras_internals import layers_in, unsupported_update
from replicator.step.optimizers.communication import Communication
from replicator.step.optimizers.flat_variables import SHARDABLE
from replicator.step.optimizers.moving_averages import MovingAverages
from replicator.step.optimizers.optimizer import Optimizer
from replicator.step.optimizers.schedules import Number
from replicator.step.variables import held_by

import gin
import keras
import tensorflow as tf

_CLIP_HERE = "set wrap_optimizer's clip_norm, which clips after averaging over replicas"
_REMEDIES = {
    "clipnorm": _CLIP_HERE, "global_clipnorm": _CLIP_HERE, "clipvalue": _CLIP_HERE,
    "gradient_accumulation_steps": "it fails on several replicas; use replicator.microbatch",
    "use_ema": "set wrap_optimizer's ema_decay",
    "loss_scale_factor": "loss scaling is part of wrap_optimizer, under 'mixed_float16'"}

_SHARDING = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)


@gin.configurable(module="replicator", denylist=["optimizer", "variables"])
def wrap_optimizer(optimizer: keras.optimizers.Optimizer | str, variables: Sequence[keras.Variable],
                   clip_norm: float | None = None, ema_decay: Number | None = None,
                   ema_start: int = 0, ema_every: int = 1, skip_nonfinite: bool = False,
                   every: int = 1, sharded: bool = False, bucket_mb: float | None = None,
                   communication_dtype: str | None = None) -> Optimizer:
  """Wraps a Keras 3 optimizer, so that it makes the same updates on any number of replicas.

      optimizer = replicator.wrap_optimizer(
          keras.optimizers.Adam(1e-3), network.trainable_variables, clip_norm=1.0)

  Args:
    optimizer: any Keras optimizer, or the name of one, such as 'adam', for its default settings.
      Its learning rate and other floats, such as `beta_2`, are numbers or schedules. Schedules
      count training steps. Keras does not accept schedules for the momentum of SGD and RMSprop or
      for the betas of Lion.
    variables: the trainable variables that it owns, from networks that are already built.
    clip_norm: clips the averaged gradients to this global norm.
    ema_decay: keeps an exponential moving average of the variables with this decay, a number or a
      schedule. The moving statistics of normalization layers remain those of the variables
      themselves; see `use_standing_statistics`.
    ema_start: the number of initial updates during which the average is a copy of the variables.
    ema_every: updates the average once every this many updates. With `ema_decay` 0, the average is
      a target network, copied from the online network at that interval.
    skip_nonfinite: skips an update if an averaged gradient is infinite or NaN: all variables,
      slots, averages and `iterations` stay as they are. Such updates are counted in either case.
      Always on under the precision 'mixed_float16', which uses overflows to adapt the loss scale.
    every: makes an update at one of this many calls, from the gradients of that call; the gradients
      of the other calls are discarded. This can delay a policy relative to its critics. It saves
      little time, because the other gradients are still computed; updating the critics several
      times in one step does save time.
    sharded: each replica keeps and updates one part of the slots and averages, instead of a full
      copy (ZeRO, stages 1 and 2; Rajbhandari et al. 2020). Requires an optimizer that updates each
      element independently, and the strategy 'mirrored' or 'multi_worker_mirrored'. A single
      replica keeps everything.
    bucket_mb: sends the gradients in buckets of at least this many megabytes (2^20 bytes), the last
      variables first, as soon as the backward pass has computed them. None sends all together.
    communication_dtype: 'bfloat16' sends and sums float32 gradients in half the bytes, with 8 bits
      of precision: a rounding error of up to 0.4% for each replica.

  Returns:
    An `Optimizer`; a step calls its `minimize` or its `apply`.

  Raises:
    UsageError: `every` or `ema_every` is below 1; `ema_start` or `ema_every` is given without
      `ema_decay`; `optimizer` is not an optimizer; the variables are missing, repeated, or not
      Keras variables; the optimizer has a Keras option that would change the results on several
      replicas (`clipnorm`, `global_clipnorm`, `clipvalue`, `gradient_accumulation_steps`) or that
      this function replaces (`use_ema`, `loss_scale_factor`); its state cannot be `sharded`;
      `bucket_mb` is not above 0; or `communication_dtype` is unknown.
  """
  optimizer = _made(optimizer)
  _check_options(optimizer)
  owned = _checked(optimizer.name, variables)
  at_least_one("wrap_optimizer", every=every, ema_every=ema_every)
  if ema_decay is None and (ema_start, ema_every) != (0, 1):
    raise UsageError("wrap_optimizer.ema_start and ema_every have no effect without ema_decay; set "
                     "it, or leave them out")
  if bucket_mb is not None:
    above_zero("wrap_optimizer", bucket_mb=bucket_mb)
  if communication_dtype not in (None, "bfloat16"):
    raise UsageError(f"wrap_optimizer.communication_dtype = {communication_dtype!r}: use "
                     "'bfloat16', or None to send gradients as they are")
  shards = _shards_of(optimizer) if sharded else 1
  averages = None if ema_decay is None else MovingAverages(
      owned, ema_decay, ema_start, ema_every, shards)
  return Optimizer(optimizer, owned, clip_norm, skip_nonfinite, averages,
                   Communication(bucket_mb, communication_dtype), every, shards)


def _made(optimizer: Any) -> keras.optimizers.Optimizer:
  """Returns an optimizer as it is, or makes one from a Keras name or config.

  Raises a UsageError for anything else.
  """
  if isinstance(optimizer, str) or (isinstance(optimizer, dict) and "class_name" in optimizer):
    try:
      return keras.optimizers.get(optimizer)
    except (TypeError, ValueError) as error:
      known = [name for name in dir(keras.optimizers) if name[0].isupper()]
      name = optimizer if isinstance(optimizer, str) else str(optimizer["class_name"])
      raise UsageError(f"wrap_optimizer: Keras cannot make an optimizer from {optimizer!r}."
                       f"{nearest(name, known)}") from error
  if isinstance(optimizer, keras.optimizers.Optimizer):
    return optimizer
  kind = type(optimizer).__name__
  if isinstance(optimizer, type):
    problem = f"{optimizer.__name__} is a class; add parentheses: {optimizer.__name__}()"
  elif isinstance(optimizer, Optimizer):
    problem = f"{optimizer.name} is already wrapped; use it as is"
  elif isinstance(optimizer, list | tuple | dict):
    problem = (f"given a {kind}; an optimizer owns the variables of a network: call wrap_optimizer "
               "for each, or wrap_optimizers(make, generator=generator, ...) once")
  elif callable(optimizer):
    problem = "given a function; call it, since each network needs its own optimizer"
  else:
    problem = (f"a {kind} is not a Keras 3 optimizer; pass one such as "
               "keras.optimizers.Adam(1e-3)")
  raise UsageError(f"wrap_optimizer: {problem}")


def _check_options(optimizer: keras.optimizers.Optimizer) -> None:
  """Raises a UsageError if an optimizer is already built or cannot be replicated as it is."""
  if optimizer.built:
    raise UsageError(f"{optimizer.name}: already has variables; make a new optimizer for each "
                     "network")
  if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
    raise UsageError(f"{optimizer.name}: loss scaling is part of wrap_optimizer, under "
                     "'mixed_float16'; wrap the inner optimizer")
  if reason := unsupported_update(optimizer):
    raise UsageError(f"{optimizer.name}: {reason}")
  for option, remedy in _REMEDIES.items():
    if getattr(optimizer, option, None):
      raise UsageError(f"{optimizer.name}: the Keras option '{option}' does not work with "
                       f"replication; {remedy}")


def _shards_of(optimizer: keras.optimizers.Optimizer) -> int:
  """Returns the number of replicas over which the state of an optimizer is sharded.

  Raises a UsageError if it cannot be sharded.
  """
  if type(optimizer) not in SHARDABLE or "update_step" in vars(optimizer):
    known = ", ".join(sorted(each.__name__ for each in SHARDABLE))
    raise UsageError(f"wrap_optimizer.sharded = True: {type(optimizer).__name__} may need all of a "
                     f"variable to update a part of it; use one of {known}, or sharded = False")
  strategy = tf.distribute.get_strategy()
  if isinstance(strategy, tf.distribute.ParameterServerStrategy) or (
      strategy.num_replicas_in_sync > 1 and not isinstance(strategy, _SHARDING)):
    raise UsageError("wrap_optimizer.sharded = True: works with 'mirrored' and "
                     "'multi_worker_mirrored', whose replicas have copies of the state to divide; "
                     "set Replicator.strategy to one of those, or sharded = False")
  return strategy.num_replicas_in_sync


def _checked(name: str, variables: Sequence) -> list[keras.Variable]:
  """Returns an optimizer's variables as a list; checks that they are distinct Keras variables."""
  where = f"wrap_optimizer({name})"
  if isinstance(variables, keras.layers.Layer):
    raise UsageError(f"{where}: given the network '{variables.name}'; pass its "
                     "trainable_variables")
  if isinstance(variables, keras.Variable | tf.Variable):
    raise UsageError(f"{where}: given one variable; pass a list, [variable]")
  owned = list(variables)
  if not owned:
    raise UsageError(f"{where}: no variables; pass the trainable_variables of a network that is "
                     "already built: begin it with keras.Input(shape), or call its build")
  for variable in owned:
    if not isinstance(variable, keras.Variable):
      raise UsageError(f"{where}: {getattr(variable, 'name', variable)!r} is a "
                       f"{type(variable).__name__}; make it a keras.Variable")
    if getattr(variable, "overwrite_with_gradient", False):
      raise UsageError(f"{where}: Keras overwrites '{variable.path}', the scale of a float8 layer, "
                       "with its gradient, which is not a mean over replicas; remove "
                       "quantize('float8'), and set train.precision = 'mixed_bfloat16'")
    if sum(v is variable for v in owned) > 1:
      raise UsageError(f"{where}: the variable '{variable.path}' is given twice; list it once")
  return owned


def wrap_optimizers(make: Callable[[], keras.optimizers.Optimizer] | str,
                    options: Mapping[str, Mapping[str, Any]] | None = None, /,
                    **networks: keras.Model | keras.Variable | Sequence | None
                    ) -> dict[str, Optimizer]:
  """Makes a wrapped optimizer for each network, in the gin scope of the network's name.

      self.optimizers = replicator.wrap_optimizers(
          optimizer, generator=self.generator, discriminator=self.discriminator)
      ...
      loss = self.optimizers["generator"].minimize(loss_fn, z)

  `generator/adam.learning_rate = 1e-4` and `generator/wrap_optimizer.ema_decay = 0.999` then apply
  only to the generator's optimizer.

  Args:
    make: a function that makes a Keras optimizer, such as `@adam` in a gin file or
      `keras.optimizers.Adam`; or the name of an optimizer.
    options: arguments of `wrap_optimizer` by network name, such as
      `{"generator": {"ema_decay": 0.999}}`; gin files cannot set these. None for no options.
    networks: what each optimizer owns: a built network, a variable, or a list of these. A network
      that is None gets no optimizer.

  Returns:
    The optimizers by network name, in the order of the arguments.

  Raises:
    UsageError: a network is not built; and see `wrap_optimizer`.
  """
  made = {}
  for name, network in networks.items():
    if network is not None:
      with gin.config_scope(name):
        made[name] = wrap_optimizer(_called(make), _variables_of(network, name),
                                    **(options or {}).get(name, {}))
  return made


def _called(make: Any) -> Any:
  """Makes a new optimizer; raises a UsageError if `make` is already an optimizer."""
  if isinstance(make, keras.optimizers.Optimizer):
    raise UsageError(f"wrap_optimizers: {make.name} is one optimizer, but each network needs its "
                     "own; pass a function that makes one, such as lambda: "
                     "keras.optimizers.Adam(1e-3)")
  return make() if callable(make) else make


def _variables_of(network: keras.Model | keras.Variable | Sequence, path: str
                  ) -> list[keras.Variable]:
  if isinstance(network, list | tuple):
    return [variable for i, part in enumerate(network)
            for variable in _variables_of(part, f"{path}[{i}]")]
  if isinstance(network, keras.layers.Layer) and not network.variables and any(
      not layer.built and type(layer).build is not keras.layers.Layer.build
      for layer in layers_in(network)):
    raise UsageError(f"wrap_optimizers: {path}, the network '{network.name}', has no variables "
                     "yet, so it would not train; begin it with keras.Input(shape), or call its "
                     "build")
  return list(getattr(network, "trainable_variables", [network]))


def check_owners(step: Callable) -> None:
  """Raises a UsageError if two optimizers of a step own the same variable."""
  owners: dict[int, str] = {}
  for path, optimizer in held_by(step, (Optimizer,)):
    for variable in optimizer.variables_updated:
      owner = owners.setdefault(id(variable), path)
      if owner != path:
        raise UsageError(f"the variable '{variable.path}' belongs to two optimizers of the step, "
                         f"'{owner}' and '{path}'; pass it to only one of them, and minimize the "
                         "sum of its losses there, or apply the gradients of each loss, with None "
                         "for the other variables")
