"""Options of Keras optimizers: those that break replication, and those on a schedule."""

import contextlib
from collections.abc import Iterator

import keras
import tensorflow as tf

from replicator.errors import UsageError
from replicator.internals.keras_internals import unsupported_update
from replicator.optimizers.schedules import is_schedule

_CLIP_HERE = "set wrap_optimizer's clip_norm, which clips after the mean over replicas"
_REMEDIES = {
    "clipnorm": _CLIP_HERE, "global_clipnorm": _CLIP_HERE, "clipvalue": _CLIP_HERE,
    "gradient_accumulation_steps": "it fails on several replicas; use replicator.microbatch",
    "use_ema": "set wrap_optimizer's ema_decay",
    "loss_scale_factor": "loss scaling is part of wrap_optimizer, under 'mixed_float16'"}


def check_options(optimizer: keras.optimizers.Optimizer) -> None:
  """Checks that an optimizer is new, and has no option that breaks replication.

  Raises a UsageError if it is built, updates several variables at a time, or has such an option.
  """
  if optimizer.built:
    raise UsageError(f"{optimizer.name}: has variables already; make an optimizer for each network")
  if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
    raise UsageError(f"{optimizer.name}: loss scaling is part of wrap_optimizer, under "
                     "'mixed_float16'; wrap the inner optimizer")
  if reason := unsupported_update(optimizer):
    raise UsageError(f"{optimizer.name}: {reason}; use another, such as Adam")
  for option, remedy in _REMEDIES.items():
    if getattr(optimizer, option, None):
      raise UsageError(f"{optimizer.name}: the Keras option '{option}' does not go with "
                       f"replication; {remedy}")


@contextlib.contextmanager
def options_at(optimizer: keras.optimizers.Optimizer, updates: tf.Tensor, dtype: str
               ) -> Iterator[None]:
  """A context in which options that are schedules, such as `beta_2`, are numbers.

  They are the schedules' values after `updates` updates, int64 []. The learning rate, which Keras
  reads from its schedule itself, is not among them.
  """
  schedules = {name: value for name, value in vars(optimizer).items()
               if is_schedule(value) and name != "_learning_rate"}
  # Keras' own setter would look at each value for variables to keep.
  for name, schedule in schedules.items():
    object.__setattr__(optimizer, name, tf.cast(schedule(updates), dtype))
  try:
    yield
  finally:
    for name, schedule in schedules.items():
      object.__setattr__(optimizer, name, schedule)
