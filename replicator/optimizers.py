"""Optimizers for replica steps: mean over the replicas, then clip, then apply.

This is the one place where gradients are averaged. A step's loss is the mean over its own
replica's examples, and no step divides by the number of replicas.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import gin
import keras
import tensorflow as tf

from replicator import context, exchange
from replicator.errors import UsageError
from replicator.loss_scale import LossScale
from replicator.schedules import LinearDecay  # noqa: F401  (for gin)

Networks = Sequence | Mapping[str, Sequence]  # A flat list, or one for each network by name.


observer: Callable[["Optimizer", list, list[tf.Tensor], list[tf.Tensor]], None] | None = None
"""Called in every `apply`, on every replica, when it is traced, where `replicator.doctor` records:
with the optimizer, the variables, and their gradients before and after the mean over replicas."""


class Optimizer(tf.Module):
  """A Keras optimizer that owns the variables of some networks; made by `wrap_optimizer`.

  Attributes:
    variables_updated: the variables it owns, network by network in the order of their names.
    keras_optimizer: the wrapped optimizer, with its slots and `iterations`.
    averages: the EMA of each variable, or an empty list.
    nonfinite_updates: int64 [], how many updates had gradients that were not finite. A step can
      return it, to have it logged: `{"loss": loss, "nonfinite": optimizer.nonfinite_updates}`.
    loss_scale: under the precision 'mixed_float16' the factor on losses, else None.
  """

  def __init__(self, optimizer: keras.optimizers.Optimizer, variables: Networks,
               clip_norm: float | None, clip_each_network: bool, ema_decay: float | None,
               ema_start: int, skip_nonfinite: bool):
    super().__init__(name=optimizer.name)
    _refuse_what_breaks_replication(optimizer)
    self._networks = _by_network(variables)
    self.variables_updated = [v for owned in self._networks.values() for v in owned]
    self._check_owned()
    if clip_each_network and (clip_norm is None or not isinstance(variables, Mapping)):
      raise UsageError(f"wrap_optimizer({optimizer.name}): clip_each_network needs a clip_norm, "
                       "and variables in a dict of networks, {'generator': [...], 'encoder': "
                       "[...]}")
    self.keras_optimizer = optimizer
    self.clip_norm = clip_norm
    self.clip_each_network = clip_each_network
    self.ema_decay = ema_decay
    self.ema_start = ema_start
    half = keras.config.dtype_policy().name == "mixed_float16"
    self.loss_scale = LossScale() if half else None
    self.skip_nonfinite = skip_nonfinite or half
    self.nonfinite_updates = keras.Variable(
        0, dtype="int64", trainable=False, name="nonfinite_updates",
        aggregation="only_first_replica")
    # Slots exist before the first step: inside a replica they could not be created.
    optimizer.build(self.variables_updated)
    self.averages = [] if ema_decay is None else [_copy_of(v) for v in self.variables_updated]

  def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
    """What to differentiate in place of `loss` ([], floating): the loss itself, except in float16.

    To be called inside the tape, before each `apply`:

        with tf.GradientTape() as tape:
          loss = ...
          scaled = optimizer.scale_loss(loss)
        optimizer.apply(tape.gradient(scaled, variables), variables)

    Under the precision 'mixed_float16' gradients would vanish without it; see `LossScale`.
    """
    if self.loss_scale is None:
      return loss
    context.current().scaled_for.add(self)
    return self.loss_scale.scale(loss)

  def apply(self, gradients: Networks, variables: Networks | None = None) -> None:
    """Averages the gradients over replicas in one collective, clips, and updates the variables.

    Args:
      gradients: one for each variable, in the nest of `wrap_optimizer`'s variables. `None` leaves
        its variable alone; so does a variable that is no longer `trainable`.
      variables: the owned variables again, for the reader; checked when given. Those that
        are no longer trainable may be left out.

    Raises:
      UsageError: other variables than the owned ones, or not a single gradient; or under the
        precision 'mixed_float16' a loss that was not scaled.
    """
    pairs = self._pairs(gradients, variables)
    if not pairs:
      return
    own = self._unscaled([tf.convert_to_tensor(gradient) for gradient, _ in pairs])
    updated = [variable for _, variable in pairs]
    averaged, packs = exchange.mean_as_it_travelled(own)
    if observer:
      observer(self, updated, own, averaged)
    clipped, finite = self._clipped(averaged, packs, updated)
    # Read on each replica: from across replicas they would be sent from the first to the others.
    iterations = tf.identity(self.keras_optimizer.iterations.value)
    learning_rate = tf.identity(self.keras_optimizer.learning_rate)
    tf.distribute.get_replica_context().merge_call(
        self._update, args=(clipped, updated, finite, iterations, learning_rate))

  def _check_owned(self):
    where = f"wrap_optimizer({self.name})"
    if not all(self._networks.values()):
      raise UsageError(f"{where}: no variables; pass the trainable_variables of a network that is "
                       "already built")
    for variable in self.variables_updated:
      if not isinstance(variable, keras.Variable):
        raise UsageError(f"{where}: {getattr(variable, 'name', variable)!r} is a "
                         f"{type(variable).__name__}; make it a keras.Variable")
      if sum(v is variable for v in self.variables_updated) > 1:
        raise UsageError(f"{where}: the variable '{variable.path}' is given twice; list it once")

  def _pairs(self, gradients: Networks, variables: Networks | None) -> list[tuple]:
    """Gradients and the variables they update, in order; none if all variables are frozen."""
    given = _by_network(gradients)
    expected = self._networks if variables is None else _by_network(variables)
    unfrozen = {name: [v for v in owned if v.trainable] for name, owned in self._networks.items()}
    if _ids(expected) not in (_ids(self._networks), _ids(unfrozen)):
      raise UsageError(f"{self.name}.apply: given other variables than the "
                       f"{_count(self._networks)} it was wrapped with; an optimizer owns "
                       "its variables, in the order of wrap_optimizer(optimizer, variables)")
    if _count(given) != _count(expected):
      raise UsageError(f"{self.name}.apply: {_count(given)} gradients for {_count(expected)} "
                       "variables; of frozen ones there need be none if you pass the others too")
    pairs = [(g, v) for name in given for g, v in zip(given[name], expected[name], strict=True)
             if v.trainable]
    if pairs and all(g is None for g, _ in pairs):
      raise UsageError(f"{self.name}.apply: all {len(pairs)} gradients are None; the loss "
                       f"does not depend on {pairs[0][1].path} or the others, or it (or its "
                       "scale_loss) was computed outside the tape")
    return [(g, v) for g, v in pairs if g is not None]

  def _unscaled(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
    if self.loss_scale is None:
      return gradients
    scaled_for = context.current().scaled_for
    if self not in scaled_for:
      raise UsageError(f"{self.name}.apply: under train.precision = 'mixed_float16' small "
                       "gradients vanish unless the loss is scaled; before each apply write, "
                       "inside the tape, scaled = optimizer.scale_loss(loss), and take "
                       "tape.gradient(scaled, variables)")
    scaled_for.remove(self)  # The next update may have another scale.
    return self.loss_scale.unscale(gradients)

  def _clipped(self, gradients: list[tf.Tensor], packs: list[tf.Tensor], variables: list
               ) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The averaged gradients, clipped; and whether all are finite, bool []."""
    if self.clip_norm is None:
      return gradients, _all_finite(packs)
    if not self.clip_each_network:
      clipped, norm = tf.clip_by_global_norm(gradients, self.clip_norm)
      return clipped, tf.math.is_finite(norm)
    gradient_of = dict(zip(map(id, variables), gradients, strict=True))
    norms = []
    for owned in self._networks.values():
      ids = [id(v) for v in owned if id(v) in gradient_of]
      if ids:
        clipped, norm = tf.clip_by_global_norm([gradient_of[i] for i in ids], self.clip_norm)
        gradient_of.update(zip(ids, clipped, strict=True))
        norms.append(norm)
    return list(gradient_of.values()), _all_finite(norms)

  def _update(self, strategy, gradients, variables, finite, iterations, learning_rate):
    """Updates every replica's copy, seen from across replicas."""
    strategy.extended.update(
        self.nonfinite_updates.value,
        lambda copy, finite: copy.assign_add(tf.cast(tf.logical_not(finite), tf.int64)),
        args=(finite,), group=False)
    # Found from what all replicas share: they agree on it without another collective.
    all_finite = strategy.experimental_local_results(finite)[0]
    if self.loss_scale is not None:
      self.loss_scale.adapt(all_finite)
    update = lambda: self._update_variables(strategy, gradients, variables, iterations,
                                            learning_rate)
    if self.skip_nonfinite:
      tf.cond(all_finite, update, lambda: None)
    else:
      update()

  def _update_variables(self, strategy, gradients, variables, iterations, learning_rate):
    """Keras' own `apply` would add the gradients up over replicas once more."""
    optimizer = self.keras_optimizer

    def update_copy(copy, gradient, iterations, learning_rate, decays):
      if decays:
        copy.assign_sub(copy * tf.cast(optimizer.weight_decay * learning_rate, copy.dtype))
      with _iterations_read(optimizer, iterations):
        optimizer.update_step(gradient, copy, learning_rate)

    for gradient, variable in zip(gradients, variables, strict=True):
      decays = optimizer.weight_decay and optimizer._use_weight_decay(variable)
      strategy.extended.update(variable.value, update_copy,
                               args=(gradient, iterations, learning_rate, decays), group=False)
      if variable.constraint is not None:
        variable.assign(variable.constraint(variable))
    # Not Keras' own, which reads and then assigns: asynchronous workers would lose counts.
    optimizer.iterations.value.assign_add(1)
    if self.ema_decay is not None:
      self._update_averages(strategy, self.ema_decay)

  def _update_averages(self, strategy, decay: float):
    started = self.keras_optimizer.iterations > self.ema_start
    take = tf.where(started, tf.constant(1.0 - decay, tf.float64), 1.0)
    for average, variable in zip(self.averages, self.variables_updated, strict=True):
      strategy.extended.update(
          average.value, lambda a, v, take: a.assign_sub(tf.cast(take, a.dtype) * (a - v)),
          args=(variable.value, take), group=False)

  @contextlib.contextmanager
  def averaged_weights(self) -> Iterator[None]:
    """Inside, networks compute with the EMA of their weights; nothing is overwritten.

    Raises:
      UsageError: the optimizer was wrapped without `ema_decay`.
    """
    if not self.averages:
      raise UsageError(f"{self.name} keeps no averages; set wrap_optimizer's ema_decay")
    averages = [(v, a.value) for v, a in zip(self.variables_updated, self.averages, strict=True)]
    with keras.StatelessScope(averages, initialize_variables=False):
      yield


@gin.configurable(denylist=["optimizer", "variables"])
def wrap_optimizer(optimizer: keras.optimizers.Optimizer, variables: Networks,
                   clip_norm: float | None = None, clip_each_network: bool = False,
                   ema_decay: float | None = None, ema_start: int = 0,
                   skip_nonfinite: bool = False) -> Optimizer:
  """Makes a Keras 3 optimizer right for replica steps.

  Args:
    optimizer: any Keras optimizer, with a constant or scheduled learning rate.
    variables: the trainable variables that it owns, in a list, or in a dict of lists, one for
      each network: `{"generator": [...], "encoder": [...]}`. The networks must be built.
    clip_norm: clip the averaged gradients to this norm, that of all of them together.
    clip_each_network: clip those of each network of the dict to it, by their own norm.
    ema_decay: also keep an exponential moving average of the variables with this decay.
    ema_start: until so many updates were made the average is a copy.
    skip_nonfinite: make no update from averaged gradients of which one is infinite or NaN: all
      variables, slots, averages and `iterations` stay. They are counted in any case. Always
      so under the precision 'mixed_float16', where overflows tell how far a loss can be scaled.

  Returns:
    an `Optimizer`, whose `apply(gradients, variables)` a step calls.

  Raises:
    UsageError: no variables, or none of Keras, or one twice; `clip_each_network` without networks
      or norm; or a Keras option that would compute otherwise on two replicas than on one
      (`clipnorm`, `global_clipnorm`, `clipvalue`, `gradient_accumulation_steps`), or that has its
      equal here (`use_ema`, `loss_scale_factor`).
  """
  return Optimizer(optimizer, variables, clip_norm, clip_each_network, ema_decay, ema_start,
                   skip_nonfinite)


@contextlib.contextmanager
def _iterations_read(optimizer: keras.optimizers.Optimizer, iterations: tf.Tensor
                     ) -> Iterator[None]:
  """Inside, a Keras optimizer finds its `iterations` read already.

  It would read them again for every variable, and compute again what depends on them.
  """
  variable = optimizer._iterations
  optimizer._iterations = iterations
  try:
    yield
  finally:
    optimizer._iterations = variable


def _by_network(nest: Networks) -> dict[str, list]:
  """Lists by the name of their network, sorted; a flat one belongs to a network without a name."""
  if isinstance(nest, Mapping):
    return {name: list(nest[name]) for name in sorted(nest)}
  return {"": list(nest)}


def _ids(networks: dict[str, list]) -> dict[str, list[int]]:
  return {name: [id(v) for v in variables] for name, variables in networks.items()}


def _count(networks: dict[str, list]) -> int | dict[str, int]:
  counts = {name: len(values) for name, values in networks.items()}
  return counts.get("", counts)


def _all_finite(values: list[tf.Tensor]) -> tf.Tensor:
  """Whether no number of some tensors, nor their sum, is infinite or NaN: bool [].

  One operation a tensor, at a third of the time of a look at every number.
  """
  widest = tf.float64 if any(v.dtype == tf.float64 for v in values) else tf.float32
  return tf.math.is_finite(tf.add_n([tf.reduce_sum(tf.cast(v, widest)) for v in values]))


def _refuse_what_breaks_replication(optimizer: keras.optimizers.Optimizer) -> None:
  if optimizer.built:
    raise UsageError(f"{optimizer.name}: has variables already; make an optimizer for each network")
  if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
    raise UsageError(f"{optimizer.name}: loss scaling is part of wrap_optimizer, under "
                     "'mixed_float16'; wrap the inner optimizer")
  if type(optimizer)._backend_update_step is not keras.optimizers.Optimizer._backend_update_step:
    raise UsageError(f"{optimizer.name}: {type(optimizer).__name__} does more in an update than "
                     "one variable at a time; use another, such as Adam")
  remedies = {
      "clipnorm": "set wrap_optimizer's clip_norm, which clips after the mean over replicas",
      "global_clipnorm": "set wrap_optimizer's clip_norm, which clips after the mean over replicas",
      "clipvalue": "set wrap_optimizer's clip_norm, which clips after the mean over replicas",
      "gradient_accumulation_steps": "it fails on several replicas; use replicator.microbatch",
      "use_ema": "set wrap_optimizer's ema_decay",
      "loss_scale_factor": "loss scaling is part of wrap_optimizer, under 'mixed_float16'",
  }
  for option, remedy in remedies.items():
    if getattr(optimizer, option, None):
      raise UsageError(f"{optimizer.name}: the Keras option '{option}' does not go with "
                       f"replication; {remedy}")


def _copy_of(variable: keras.Variable) -> keras.Variable:
  with tf.distribute.get_strategy().extended.colocate_vars_with(variable.value):
    return keras.Variable(lambda shape, dtype: tf.cast(tf.identity(variable.value), dtype),
                          shape=variable.shape, dtype=variable.dtype, trainable=False,
                          name=f"{variable.name}_average", aggregation="only_first_replica")
