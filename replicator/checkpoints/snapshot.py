"""Snapshots: the values of variables, copied to the host and put back, under any strategy.

If the replicas' copies of a variable may differ (`ON_READ`), and do, the snapshot holds every copy.
When they are put back on another number of replicas, the variable's aggregation combines them. Any
other variable has one value in the snapshot, and its copies must be equal.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from replicator.checkpoints.replica_checksums import AssignedAt, Copies, refusal
from replicator.collectives import collectives
from replicator.errors import UsageError
from replicator.step.replicated import copies_of
from replicator.strategies.replicator import Replicator

_SUM = tf.VariableAggregation.SUM
_MEAN = tf.VariableAggregation.MEAN
_FIRST = tf.VariableAggregation.ONLY_FIRST_REPLICA


@dataclasses.dataclass
class Snapshot:
  """The values of variables at one moment, by path; training does not change these copies."""

  values: dict[str, np.ndarray]
  by_replica: list[str]  # The paths of values `[num_replicas, ...]`, one for each replica.


class Variables:
  """Takes snapshots of the variables of a step, and puts them back.

  `variables` are those of `step.variables.variables_of`, by path. A single process needs no
  replicator. Raises a UsageError if something is not a variable and cannot be saved.
  """

  def __init__(self, variables: dict[str, Any], replicator: Replicator | None = None):
    self._variables = {path: _plain(path, v) for path, v in variables.items()}
    self._replicator = replicator
    self._summed = {path for path, v in self._variables.items()
                    if _differs(v) and v.aggregation == _SUM}
    self._copies = Copies({path: v for path, v in self._variables.items()
                           if path not in self._summed}, replicator)
    self._gathers: dict[tuple[str, ...], Callable] = {}

  def take(self, assigned_at: AssignedAt = lambda variable: "") -> Snapshot:
    """Copies all values to the host. All workers must call it at the same step.

    Raises a UsageError as `by_replica` does.
    """
    by_replica = self.by_replica(assigned_at)
    values = self._gathered(by_replica)
    for path, variable in self._variables.items():
      if path not in values:
        copies = copies_of(variable)[:None if path in by_replica else 1]
        read = [copy.read_value().numpy() for copy in copies]
        values[path] = np.stack(read) if path in by_replica else read[0]
    return Snapshot(values, by_replica)

  def by_replica(self, assigned_at: AssignedAt = lambda variable: "") -> list[str]:
    """The paths of the variables of which each replica has another value, as `ON_READ` ones may.

    All workers must call it at the same step. `assigned_at` returns where the step assigns a
    variable, for the error. Raises a UsageError if the copies of any other variable have parted.
    """
    differing = self._copies.parted() | self._summed
    for path in sorted(differing):
      if not _differs(self._variables[path]):
        raise UsageError(refusal(path, self._variables[path], assigned_at))
    return sorted(differing)

  def mismatches(self, shapes: dict[str, tuple[Any, list[int]]]) -> dict[str, str]:
    """Descriptions of the differences from what was saved, by path.

    `shapes` has the dtype and the shape of each saved value, without the axis of replicas.
    """
    found = {path: "is not in the checkpoint" for path in self._variables if path not in shapes}
    for path, (dtype, shape) in shapes.items():
      here = self._variables.get(path)
      if here is None:
        found[path] = "is only in the checkpoint"
      elif here.dtype != dtype or not here.shape.is_compatible_with(shape):
        found[path] = (f"was {dtype.name} {list(shape)} and is {here.dtype.name} "
                       f"{here.shape.as_list() if here.shape.rank is not None else '[...]'}")
    return dict(sorted(found.items()))

  def put(self, snapshot: Snapshot) -> None:
    """Assigns to each variable the value at its path, if there is one.

    Raises a UsageError if a variable without an aggregation has a value for each replica, and the
    number of replicas has changed.
    """
    for path, value in snapshot.values.items():
      variable = self._variables[path]
      copies = copies_of(variable)
      if _differs(variable):
        first, count = self._place(len(copies))
        saved = value if path in snapshot.by_replica else value[np.newaxis]
        values = list(_spread(path, variable, saved, count)[first:first + len(copies)])
      elif path in snapshot.by_replica:  # It differed when it was saved.
        values = [_spread(path, variable, value, 1)[0]] * len(copies)
      else:
        values = [value] * len(copies)
      for copy, its_value in zip(copies, values, strict=True):
        copy.assign(its_value)

  def covers(self, variable: Any) -> bool:
    """Whether these variables include a variable that a step uses, with all its copies."""
    known = {id(copy.handle) for v in self._variables.values() for copy in copies_of(v)}
    return all(id(copy.handle) in known for copy in copies_of(variable))

  def _place(self, copies: int) -> tuple[int, int]:
    """The index of the first replica of this process, and the number of replicas."""
    if self._replicator is None or self._replicator.num_pipelines == 1:
      return 0, copies
    return self._replicator.worker_id * copies, self._replicator.num_replicas

  def _gathered(self, paths: list[str]) -> dict[str, np.ndarray]:
    """The values `[num_replicas, ...]` of all workers' replicas; none in a single process."""
    if self._replicator is None or self._replicator.num_pipelines == 1 or not paths:
      return {}
    gather = self._gathers.setdefault(  # Kept, so that `run` compiles it once.
        tuple(paths), functools.partial(self._gather, paths))
    return {path: value.numpy()
            for path, value in zip(paths, self._replicator.run(gather)[0], strict=True)}

  def _gather(self, paths: list[str]) -> list[tf.Tensor]:
    return collectives.all_gather([self._variables[path].read_value() for path in paths])


def _plain(path: str, variable: Any) -> Any:
  if isinstance(variable, tf.random.Generator):
    return variable.state
  if not isinstance(variable, tf.Variable):
    raise UsageError(f"the step holds '{path}', a {type(variable).__name__}, which cannot be "
                     "saved; keep its state in a tf.Variable")
  return variable


def _differs(variable: Any) -> bool:
  """Whether each replica has a value of its own."""
  return (isinstance(getattr(variable, "values", None), tuple)
          and variable.synchronization == tf.VariableSynchronization.ON_READ)


def _spread(path: str, variable: Any, values: np.ndarray, count: int) -> np.ndarray:
  """The values for `count` replicas: `[replicas when saved, ...] -> [count, ...]`."""
  if len(values) == count:
    return values
  if variable.aggregation == _SUM:  # On one replica, so that a sum of integers stays exact.
    total = values.sum(axis=0, dtype=values.dtype)[np.newaxis]
    return np.concatenate([total, np.zeros([count - 1, *total.shape[1:]], values.dtype)])
  if len(values) > 1 and variable.aggregation == _MEAN:
    values = values.mean(axis=0, dtype=values.dtype, keepdims=True)
  elif len(values) > 1 and variable.aggregation != _FIRST:
    raise UsageError(f"the checkpoint has a value of '{path}' for each of {len(values)} replicas, "
                     f"and there are {count} now; resume on {len(values)}, or give the variable an "
                     "aggregation")
  return np.repeat(values[:1], count, axis=0)
