"""One replica step function, any `tf.distribute` strategy.

The names below are the whole interface. They load on first use, so that importing this
package costs nothing and `python -m replicator.launch` starts at once.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from replicator import app as app
  from replicator import random as random
  from replicator.collectives import all_gather as all_gather
  from replicator.collectives import all_mean as all_mean
  from replicator.collectives import all_sum as all_sum
  from replicator.context import num_replicas as num_replicas
  from replicator.context import replica_id as replica_id
  from replicator.context import step_number as step_number
  from replicator.core import Replicator as Replicator
  from replicator.errors import UsageError as UsageError
  from replicator.inputs import InputContext as InputContext
  from replicator.inputs import split as split
  from replicator.layers import GlobalBatchNorm as GlobalBatchNorm
  from replicator.layers import SpectralNorm as SpectralNorm
  from replicator.loop import Evaluation as Evaluation
  from replicator.loop import train as train
  from replicator.optimizers import LinearDecay as LinearDecay
  from replicator.optimizers import Optimizer as Optimizer
  from replicator.optimizers import wrap_optimizer as wrap_optimizer

_HOMES = {
    "all_gather": "collectives",
    "all_mean": "collectives",
    "all_sum": "collectives",
    "num_replicas": "context",
    "replica_id": "context",
    "step_number": "context",
    "Replicator": "core",
    "UsageError": "errors",
    "InputContext": "inputs",
    "split": "inputs",
    "GlobalBatchNorm": "layers",
    "SpectralNorm": "layers",
    "Evaluation": "loop",
    "train": "loop",
    "LinearDecay": "optimizers",
    "Optimizer": "optimizers",
    "wrap_optimizer": "optimizers",
}
_LIGHT = {"errors", "launch", "progress", "quiet", "report"}  # modules without TensorFlow

__all__ = sorted(["app", "random", *_HOMES])


def __getattr__(name: str) -> Any:
  if name.startswith("__"):
    raise AttributeError(f"module 'replicator' has no attribute '{name}'")
  if _HOMES.get(name, name) not in _LIGHT:
    importlib.import_module("replicator.quiet").import_tensorflow()
  if name in _HOMES:
    return getattr(importlib.import_module(f"replicator.{_HOMES[name]}"), name)
  try:
    return importlib.import_module(f"replicator.{name}")
  except ModuleNotFoundError as error:
    if error.name != f"replicator.{name}":
      raise
    raise AttributeError(f"module 'replicator' has no attribute '{name}'") from None
