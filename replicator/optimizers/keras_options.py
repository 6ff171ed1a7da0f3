"""Keras optimizers and options that would train differently on several replicas are refused."""

import keras

from replicator.errors import UsageError
from replicator.internals.keras_internals import unsupported_update

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
