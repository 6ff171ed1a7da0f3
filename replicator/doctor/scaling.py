"""Measurements for `--scaling`."""

import dataclasses
from collections.abc import Callable, Sequence

from replicator.app import config
from replicator.doctor.experiment import bound, configure
from replicator.errors import UsageError
from replicator.strategies import strategy
from replicator.strategies.replicator import replaced
from replicator.tools.scaling.cost import StepCost, record


def measure(main: Callable[[str], None], files: Sequence[str], params: Sequence[str], calls: int
            ) -> StepCost:
  """Times `calls` calls of an experiment's step on one replica, on a GPU if there is one.

  Counts the transfers on two replicas with the same number of examples each. Raises a UsageError if
  there are none, and the errors of `run_until_prepared`.
  """
  config.parse(files, params)
  devices, steps = bound("Replicator.devices_per_replica", 1), bound("train.steps_per_call", 1)
  strategy.make("mirrored", 2 * devices, None, devices)  # Later, the CPU could not be split.
  # If unbound, the step runs on a GPU, if there is one.
  is_split = bound("Replicator.logical_cpus", None)
  configure(files, params, steps)
  with replaced(strategy="one_device", **({"logical_cpus": devices} if is_split else {})):
    alone = record(main, calls)
  configure(files, params, steps, f"train.global_batch_size = {2 * alone.batch_size}")
  with replaced(strategy="mirrored", logical_cpus=2 * devices, jit_compile=False):
    transfers = record(main, calls=0).transfers
  if not transfers:
    raise UsageError("the step calls no collective: each replica would train on its own; create "
                     "its optimizers with replicator.wrap_optimizer")
  return dataclasses.replace(alone, transfers=transfers)
