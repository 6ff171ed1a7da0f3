"""Optimizers for replica steps: mean over the replicas, then clip, then apply.

This is the one place where gradients are averaged. A step's loss is the mean over its own
replica's examples, and no step divides by the number of replicas.
"""

import contextlib
from collections.abc import Iterator, Sequence

import gin
import keras
import tensorflow as tf

from replicator import collectives
from replicator.errors import UsageError


class Optimizer(tf.Module):
  """A Keras optimizer that owns the variables of one network; made by `wrap_optimizer`.

  Attributes:
    variables_updated: the trainable variables it owns, in the order of their gradients.
    keras_optimizer: the wrapped optimizer, with its slots and `iterations`.
    averages: the EMA of each variable, or an empty list.
  """

  def __init__(self, optimizer: keras.optimizers.Optimizer, variables: Sequence,
               clip_norm: float | None, ema_decay: float | None, ema_start: int):
    super().__init__(name=optimizer.name)
    _refuse_what_breaks_replication(optimizer)
    self.variables_updated = list(variables)
    if not self.variables_updated:
      raise UsageError(f"wrap_optimizer({optimizer.name}): no variables; pass the "
                       "trainable_variables of a network that is already built")
    self.keras_optimizer = optimizer
    self.clip_norm = clip_norm
    self.ema_decay = ema_decay
    self.ema_start = ema_start
    # Slots exist before the first step: inside a replica they could not be created.
    optimizer.build(self.variables_updated)
    self.averages = [] if ema_decay is None else [_copy_of(v) for v in self.variables_updated]

  def apply(self, gradients: Sequence, variables: Sequence | None = None) -> None:
    """Averages the gradients over replicas in one collective, clips, and updates the variables.

    Args:
      gradients: one for each owned variable, in order; `None` leaves its variable alone.
      variables: the owned variables again, for the reader; checked when given.

    Raises:
      UsageError: other variables than the owned ones, or not a single gradient.
    """
    self._check(gradients, variables)
    owned = zip(gradients, self.variables_updated, strict=True)
    pairs = [(tf.convert_to_tensor(g), v) for g, v in owned if g is not None]
    averaged = collectives.all_mean([g for g, _ in pairs])
    if self.clip_norm is not None:
      averaged, _ = tf.clip_by_global_norm(averaged, self.clip_norm)
    tf.distribute.get_replica_context().merge_call(
        self._update, args=(averaged, [v for _, v in pairs]))

  def _check(self, gradients, variables):
    if variables is not None and [id(v) for v in variables] != [
        id(v) for v in self.variables_updated]:
      raise UsageError(f"{self.name}.apply: given other variables than the "
                       f"{len(self.variables_updated)} it was wrapped with; an optimizer owns "
                       "its variables, in the order of wrap_optimizer(optimizer, variables)")
    if len(gradients) != len(self.variables_updated):
      raise UsageError(f"{self.name}.apply: {len(gradients)} gradients for "
                       f"{len(self.variables_updated)} variables")
    if all(g is None for g in gradients):
      raise UsageError(f"{self.name}.apply: all {len(gradients)} gradients are None; the loss "
                       f"does not depend on {self.variables_updated[0].path} or the others, or "
                       "it was computed outside the tape")

  def _update(self, strategy, gradients, variables):
    """Updates every replica's copy, seen from across replicas.

    Keras' own `apply` would add the gradients up over replicas once more.
    """
    optimizer = self.keras_optimizer
    learning_rate = tf.convert_to_tensor(optimizer.learning_rate)

    def update_copy(copy, gradient, learning_rate, decays):
      if decays:
        copy.assign_sub(copy * tf.cast(optimizer.weight_decay * learning_rate, copy.dtype))
      optimizer.update_step(gradient, copy, learning_rate)

    for gradient, variable in zip(gradients, variables, strict=True):
      decays = optimizer.weight_decay and optimizer._use_weight_decay(variable)
      strategy.extended.update(variable.value, update_copy,
                               args=(gradient, learning_rate, decays), group=False)
      if variable.constraint is not None:
        variable.assign(variable.constraint(variable))
    optimizer.iterations.assign_add(1)
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
def wrap_optimizer(optimizer: keras.optimizers.Optimizer, variables: Sequence,
                   clip_norm: float | None = None, ema_decay: float | None = None,
                   ema_start: int = 0) -> Optimizer:
  """Makes a Keras 3 optimizer right for replica steps.

  Args:
    optimizer: any Keras optimizer, with a constant or scheduled learning rate.
    variables: the trainable variables that it owns; the network must be built.
    clip_norm: clip the averaged gradients to this global norm.
    ema_decay: also keep an exponential moving average of the variables with this decay.
    ema_start: until so many updates were made the average is a copy.

  Returns:
    an `Optimizer`, whose `apply(gradients, variables)` a step calls.

  Raises:
    UsageError: no variables, or a Keras option that would compute otherwise on two replicas
      than on one (`clipnorm`, `global_clipnorm`, `clipvalue`, `gradient_accumulation_steps`),
      or that has its equal here (`use_ema`).
  """
  return Optimizer(optimizer, variables, clip_norm, ema_decay, ema_start)


@gin.configurable
class LinearDecay(keras.optimizers.schedules.LearningRateSchedule):
  """A learning rate that rises linearly, stays, then falls linearly to zero.

  Args:
    learning_rate: the highest one.
    updates: the number of this optimizer's updates at which it reaches zero.
    start: the number of updates at which it begins to fall.
    warmup: the number of updates over which it rises; 0 starts at the highest.
  """

  def __init__(self, learning_rate: float, updates: int, start: int = 0, warmup: int = 0):
    if not warmup <= start < updates:
      raise UsageError(f"LinearDecay: warmup = {warmup}, start = {start} and updates = {updates} "
                       "must follow each other in this order")
    self.learning_rate = learning_rate
    self.updates = updates
    self.start = start
    self.warmup = warmup

  def __call__(self, step: tf.Tensor) -> tf.Tensor:
    done = tf.cast(step, keras.config.floatx())
    remaining = (self.updates - done) / (self.updates - self.start)
    rate = self.learning_rate * tf.clip_by_value(remaining, 0.0, 1.0)
    return rate * tf.minimum((done + 1) / self.warmup, 1.0) if self.warmup else rate

  def get_config(self) -> dict:
    return {"learning_rate": self.learning_rate, "updates": self.updates, "start": self.start,
            "warmup": self.warmup}


def _refuse_what_breaks_replication(optimizer: keras.optimizers.Optimizer) -> None:
  if optimizer.built:
    raise UsageError(f"{optimizer.name}: has variables already; make an optimizer for each network")
  if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
    raise UsageError(f"{optimizer.name}: mixed_bfloat16 needs no loss scaling; wrap the inner one")
  if type(optimizer)._backend_update_step is not keras.optimizers.Optimizer._backend_update_step:
    raise UsageError(f"{optimizer.name}: {type(optimizer).__name__} does more in an update than "
                     "one variable at a time; use another, such as Adam")
  remedies = {
      "clipnorm": "set wrap_optimizer's clip_norm, which clips after the mean over replicas",
      "global_clipnorm": "set wrap_optimizer's clip_norm, which clips after the mean over replicas",
      "clipvalue": "set wrap_optimizer's clip_norm, which clips after the mean over replicas",
      "gradient_accumulation_steps": "it fails on several replicas; make the batch smaller",
      "use_ema": "set wrap_optimizer's ema_decay",
      "loss_scale_factor": "mixed_bfloat16 needs no loss scaling",
  }
  for option, remedy in remedies.items():
    if getattr(optimizer, option, None):
      raise UsageError(f"{optimizer.name}: the Keras option '{option}' does not go with "
                       f"replication; {remedy}")


def _copy_of(variable: keras.Variable) -> keras.Variable:
  return keras.Variable(lambda shape, dtype: tf.cast(tf.identity(variable.value), dtype),
                        shape=variable.shape, dtype=variable.dtype, trainable=False,
                        name=f"{variable.name}_average", aggregation="only_first_replica")
