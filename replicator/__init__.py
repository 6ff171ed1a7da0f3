"""One replica step function, any `tf.distribute` strategy.

The names below are the whole interface. They load on first use, so that importing this
package costs nothing and `python -m replicator.launch` starts at once.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from replicator import app as app
  from replicator import random as random
  from replicator.accumulation import microbatch as microbatch
  from replicator.accumulation import split as split
  from replicator.batch_norm import GlobalBatchNorm as GlobalBatchNorm
  from replicator.chief import Evaluation as Evaluation
  from replicator.collectives import all_concat as all_concat
  from replicator.collectives import all_gather as all_gather
  from replicator.collectives import all_max as all_max
  from replicator.collectives import all_mean as all_mean
  from replicator.collectives import all_min as all_min
  from replicator.collectives import all_sum as all_sum
  from replicator.collectives import all_to_all as all_to_all
  from replicator.collectives import broadcast as broadcast
  from replicator.collectives import map_gather as map_gather
  from replicator.collectives import map_reduce as map_reduce
  from replicator.collectives import reduce_scatter as reduce_scatter
  from replicator.context import batch_size as batch_size
  from replicator.context import num_replicas as num_replicas
  from replicator.context import replica_id as replica_id
  from replicator.context import step_number as step_number
  from replicator.core import Replicator as Replicator
  from replicator.dropout import Dropout as Dropout
  from replicator.errors import UsageError as UsageError
  from replicator.inputs import InputContext as InputContext
  from replicator.optimizers import Optimizer as Optimizer
  from replicator.optimizers import wrap_optimizer as wrap_optimizer
  from replicator.placement import logical_device as logical_device
  from replicator.schedules import LinearDecay as LinearDecay
  from replicator.spectral_norm import SpectralNorm as SpectralNorm
  from replicator.standing_statistics import use_standing_statistics as use_standing_statistics
  from replicator.training import train as train

_HOMES = {
    "microbatch": "accumulation",
    "all_concat": "collectives",
    "all_gather": "collectives",
    "all_max": "collectives",
    "all_mean": "collectives",
    "all_min": "collectives",
    "all_sum": "collectives",
    "all_to_all": "collectives",
    "broadcast": "collectives",
    "map_gather": "collectives",
    "map_reduce": "collectives",
    "reduce_scatter": "collectives",
    "batch_size": "context",
    "num_replicas": "context",
    "replica_id": "context",
    "step_number": "context",
    "Replicator": "core",
    "Dropout": "dropout",
    "UsageError": "errors",
    "InputContext": "inputs",
    "split": "accumulation",
    "GlobalBatchNorm": "batch_norm",
    "SpectralNorm": "spectral_norm",
    "Evaluation": "chief",
    "train": "training",
    "Optimizer": "optimizers",
    "wrap_optimizer": "optimizers",
    "logical_device": "placement",
    "LinearDecay": "schedules",
    "use_standing_statistics": "standing_statistics",
}
# Modules without TensorFlow.
_LIGHT = {"charts", "compare", "doctor", "errors", "gin_checks", "gin_files", "gin_types", "launch",
          "progress", "provenance", "quiet", "report", "rerun", "runs", "used_config"}

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
