"""Snapshots: the values of variables, copied to the host and put back, under any strategy.

A snapshot holds every copy of a variable whose copies may differ between replicas (`ON_READ`). When
they are put back on another number of replicas, the variable's aggregation combines them. Any
other variable has one value in the snapshot, and its copies must be equal.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Any

from replicator.errors import UsageError
from replicator.step.replicated import copies_of
from replicator.strategies.replicator import Replicator
from replicator.training.checkpoints.replica_checksums import parted

import numpy as np
import tensorflow as tf

_ALIKE = ("give its class the attribute on_all_workers = True, and compute what it assigns from "
          "what is the same on all workers")
_SUM = tf.VariableAggregation.SUM
_MEAN = tf.VariableAggregation.MEAN
_FIRST = tf.VariableAggregation.ONLY_FIRST_REPLICA
_REMEDIES = {
    tf.data.Iterator: "give its data set to train, as the inputs",
    (tf.lookup.experimental.MutableHashTable, tf.lookup.experimental.DenseHashTable):
    "keep what it holds in a replicated.variable, or if it never changes, in a "
    "tf.lookup.StaticHashTable"}


@dataclasses.dataclass
class Snapshot:
  """The values of variables at one moment, by path; training does not change these copies."""

  values: dict[str, np.ndarray]
  by_replica: list[str]  # The paths of values `[num_replicas, ...]`, one for each replica.

  def misfit(self, path: str, variable: Any, any_float: bool = False) -> str | None:
    """How the value at a path differs from a variable in shape or dtype; None if it fits.

    If `any_float`, one of floats fits a variable of other floats.
    """
    value = self.values[path]
    dtype, shape = tf.as_dtype(value.dtype), list(value.shape[path in self.by_replica:])
    is_alike = dtype == variable.dtype or (
        any_float and dtype.is_floating and variable.dtype.is_floating)
    if is_alike and variable.shape.is_compatible_with(shape):
      return None
    return (f"was {dtype.name} {shape} and is {variable.dtype.name} "
            f"{variable.shape.as_list() if variable.shape.rank is not None else '[...]'}")


class Variables:
  """Takes snapshots of the variables of a step, and puts them back.

  `variables` are those of `step.variables.variables_of`, by path. A single process needs no
  replicator. Those that are this process's `own` need not be the same in others. Raises a
  UsageError if something is not a variable and cannot be saved.
  """

  def __init__(self, variables: dict[str, Any], replicator: Replicator | None = None,
               own: Collection[str] = ()):
    self._own = set(own)
    self._variables = {path: _plain(path, v) for path, v in variables.items()}
    self._cluster = replicator if replicator and replicator.num_pipelines > 1 else None
    self._by_replica = [path for path, v in self._variables.items() if _may_differ(v)]
    self.assigned_at: Callable[[Any], str] = lambda variable: ""
    """Returns ` at file:line` for a variable that the step assigns there, or nothing."""

  def take(self) -> Snapshot:
    """Copies all values to the host. All workers must call it at the same step.

    Raises a UsageError as `check_copies` does.
    """
    self.check_copies()
    values = {path: copies_of(variable)[0].read_value().numpy()
              for path, variable in self._variables.items() if path not in self._by_replica}
    local = {path: np.stack([copy.read_value().numpy()
                             for copy in copies_of(self._variables[path])])
             for path in self._by_replica}
    of_all = self._cluster.joined(local) if self._cluster and local else local
    return Snapshot({**values, **of_all}, self._by_replica)

  @contextlib.contextmanager
  def changed_alike(self, by: str, further: Callable[[], Hashable]) -> Iterator[None]:
    """Raises a UsageError if the body, Python code of the user, changes them on one worker alone.

    All workers must enter it at the same step, also those that do not call this code. `by` names
    it, and `further` returns what else it may change, with the same `hash` in every process.
    """
    if self._cluster is None:
      yield
      return
    self.check_copies()
    yield
    self.check_copies(by)
    if len({*self._cluster.by_worker(float(hash(further()) % 2 ** 24))}) > 1:
      raise UsageError(f"{by} set what is trainable on one worker alone, so that the workers would "
                       f"compile other steps; {_ALIKE}")

  def check_copies(self, changed_by: str = "") -> None:
    """Raises a UsageError if the copies of a variable, which must be equal, have parted.

    All workers must call it at the same step. If it is known which Python code has `changed_by`
    then, the error names it.
    """
    equal = {path: v for path, v in self._variables.items()
             if path not in self._by_replica and path not in self._own}
    for path in parted(equal, self._cluster):
      variable = self._variables[path]
      named = f"'{path}' ({variable.name.removesuffix(':0')})"
      if changed_by:
        raise UsageError(f"{changed_by} assigned the variable {named} on one worker alone, or "
                         f"another value on each; {_ALIKE}")
      remedy = ("use replicator.GlobalBatchNorm" if "moving_" in variable.name else
                "average it first with replicator.all_mean or join it with all_concat, or make the "
                "variable with aggregation=tf.VariableAggregation.MEAN, or with synchronization="
                "tf.VariableSynchronization.ON_READ if each replica keeps its own")
      raise UsageError(
          f"the variable {named} has another value on each replica, and a checkpoint keeps one: "
          "each replica assigns what it computed from its own examples"
          f"{self.assigned_at(variable)}; {remedy}")

  def mismatches(self, saved: Snapshot) -> dict[str, str]:
    """Descriptions of the differences from what was saved, by path."""
    found = {path: "is not in the checkpoint" for path in self._variables
             if path not in saved.values}
    for path in saved.values:
      if path not in self._variables:
        found[path] = "is only in the checkpoint"
      elif why := saved.misfit(path, self._variables[path]):
        found[path] = why
    return dict(sorted(found.items()))

  def put(self, snapshot: Snapshot) -> None:
    """Assigns to each variable the value at its path, if there is one.

    Raises a UsageError if a variable without an aggregation has a value for each replica, and the
    number of replicas has changed.
    """
    for path, value in snapshot.values.items():
      variable = self._variables[path]
      copies = copies_of(variable)
      saved = value if path in snapshot.by_replica else value[np.newaxis]
      if path in self._by_replica:
        # Among all replicas, this process's begin at `first`.
        first = self._cluster.worker_id * len(copies) if self._cluster else 0
        count = self._cluster.num_replicas if self._cluster else len(copies)
        values = list(_spread(path, variable, saved, count)[first:first + len(copies)])
      else:
        values = [_spread(path, variable, saved, 1)[0]] * len(copies)
      for copy, its_value in zip(copies, values, strict=True):
        copy.assign(its_value)

  def covers(self, variable: Any) -> bool:
    """Whether these variables include a variable that a step uses, with all its copies."""
    known = {id(copy.handle) for v in self._variables.values() for copy in copies_of(v)}
    return all(id(copy.handle) in known for copy in copies_of(variable))


def _plain(path: str, variable: Any) -> Any:
  if isinstance(variable, tf.random.Generator):
    return variable.state
  if not isinstance(variable, tf.Variable):
    remedy = next((words for kind, words in _REMEDIES.items() if isinstance(variable, kind)),
                  "keep what it holds in a replicated.variable")
    raise UsageError(f"the step holds '{path}', a {type(variable).__name__}, which cannot be "
                     f"saved; {remedy}")
  return variable


def _may_differ(variable: Any) -> bool:
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
  if not (values == values[0]).all():
    if variable.aggregation == _MEAN:
      values = values.mean(axis=0, dtype=values.dtype, keepdims=True)
    elif variable.aggregation != _FIRST:
      raise UsageError(f"the checkpoint has a value of '{path}' for each of {len(values)} "
                       f"replicas, and there are {count} now; resume on {len(values)}, or give "
                       "the variable an aggregation")
  return np.repeat(values[:1], count, axis=0)
