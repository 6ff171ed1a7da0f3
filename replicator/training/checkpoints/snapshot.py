"""Snapshots: the values of variables, copied to the host and restored under any strategy.

A snapshot holds every copy of a variable whose copies may differ between replicas (`ON_READ`). When
they are restored on a different number of replicas, the variable's aggregation combines them. Any
other variable has one value in the snapshot: its copies must be equal, or it is sharded over the
replicas (`step.shards`) and the snapshot has the whole value, for any number of replicas.
"""

import contextlib
import dataclasses
import zlib
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from typing import Any

from replicator.errors import UsageError
from replicator.step.replicated import copies_of
from replicator.step.shards import shards_of
from replicator.strategies.replicator import Replicator
from replicator.training.checkpoints.replica_checksums import checksums, parted

import numpy as np
import tensorflow as tf

_ALIKE = ("set on_all_workers = True in its class, and compute what it assigns only from values "
          "that are the same on all workers")
_MOST_AT_ONCE = 2 ** 22  # The most numbers per replica to send at once, to bound the memory.
_SUM = tf.VariableAggregation.SUM
_MEAN = tf.VariableAggregation.MEAN
_FIRST = tf.VariableAggregation.ONLY_FIRST_REPLICA
_REMEDIES = {
    tf.data.Iterator: "pass its data set to train, as the inputs",
    (tf.lookup.experimental.MutableHashTable, tf.lookup.experimental.DenseHashTable):
    "keep its contents in a replicated.variable, or, if they never change, in a "
    "tf.lookup.StaticHashTable"}


@dataclasses.dataclass
class Snapshot:
  """The values of variables at one point in time, by path; training does not change them."""

  values: dict[str, np.ndarray]
  by_replica: list[str]  # The paths of values `[num_replicas, ...]`, one for each replica.

  def misfit(self, path: str, variable: Any, any_float: bool = False) -> str | None:
    """Describes how the value at a path differs from a variable in shape or dtype; None if it fits.

    With `any_float`, all floating dtypes fit each other.
    """
    value = self.values[path]
    dtype, shape = tf.as_dtype(value.dtype), list(value.shape[path in self.by_replica:])
    is_alike = dtype == variable.dtype or (
        any_float and dtype.is_floating and variable.dtype.is_floating)
    shards = shards_of(variable)
    here = variable.shape if shards is None else tf.TensorShape(shards.whole)
    if is_alike and here.is_compatible_with(shape):
      return None
    return (f"was {dtype.name} {shape} and is {variable.dtype.name} "
            f"{here.as_list() if here.rank is not None else '[...]'}")


class Variables:
  """The variables of a step, with methods to take and restore snapshots.

  `variables` come from `step.variables.variables_of`, by path. A single process needs no
  replicator. The variables in `own` may differ between processes. Raises a UsageError if something
  is not a variable and cannot be saved.
  """

  def __init__(self, variables: dict[str, Any], replicator: Replicator | None = None,
               own: Collection[str] = ()):
    self._own = set(own)
    self._variables = {path: _plain(path, v) for path, v in variables.items()}
    self._cluster = replicator if replicator and replicator.num_pipelines > 1 else None
    self._by_replica = [path for path, v in self._variables.items() if _may_differ(v)]
    self._shards = {path: shards for path, v in self._variables.items()
                    if (shards := shards_of(v))}
    self.assigned_at: Callable[[Any], str] = lambda variable: ""
    """Returns ` at file:line`, where the step assigns a variable, or ''."""
    self._used: list[str] = []  # The paths of variables in the step with a value per replica.

  def take(self) -> Snapshot:
    """Copies all values to the host. All workers must call it at the same step.

    Raises a UsageError like `check_copies`.
    """
    self.check_copies()
    values = {path: copies_of(variable)[0].read_value().numpy()
              for path, variable in self._variables.items() if path not in self._by_replica}
    of_all = {path: value for group in self._in_groups() for path, value in self._joined(
        group).items()}
    whole = {path: shards.joined(of_all[path]) for path, shards in self._shards.items()}
    return Snapshot({**values, **of_all, **whole},
                    [path for path in self._by_replica if path not in self._shards])

  def _joined(self, paths: Collection[str]) -> dict[str, np.ndarray]:
    """Returns the values of all replicas, for variables whose copies may differ."""
    local = {path: np.stack([copy.read_value().numpy()
                             for copy in copies_of(self._variables[path])]) for path in paths}
    return self._cluster.joined(local) if self._cluster else local

  def _in_groups(self) -> Iterator[list[str]]:
    """Yields the paths of variables whose copies may differ, in groups to send at once."""
    group, filled = list[str](), 0
    for path in self._by_replica:
      size = self._variables[path].shape.num_elements() or 0
      if group and filled + size > _MOST_AT_ONCE:
        yield group
        group, filled = [], 0
      group.append(path)
      filled += size
    if group:
      yield group

  @contextlib.contextmanager
  def changed_alike(self, by: str, further: Callable[[], Hashable]) -> Iterator[None]:
    """Raises a UsageError if the body, the user's code, changes variables on one worker only.

    All workers must enter it at the same step, even those that do not run this code. `by` names the
    code, and `further` returns what else it may change, with the same `hash` in every process.
    """
    if self._cluster is None:
      yield
      return
    self.check_copies()
    before = self._own_checksums()
    yield
    self.check_copies(by)
    self._check_own(by, before)
    if len({*self._cluster.by_worker(float(hash(further()) % 2 ** 24))}) > 1:
      raise UsageError(f"{by} changed what is trainable on one worker only, so the workers would "
                       f"compile different steps; {_ALIKE}")

  def use(self, variables: Iterable[Any]) -> list[Any]:
    """Records the variables that the step uses, for `changed_alike`; returns unknown ones."""
    known = {id(copy.handle): path for path, v in self._variables.items() for copy in copies_of(v)}
    paths = {id(v): {known.get(id(copy.handle)) for copy in copies_of(v)} for v in variables}
    self._used = [path for path in self._by_replica if {path} in paths.values()]
    return [v for v in variables if None in paths[id(v)]]

  def _own_checksums(self) -> dict[str, list[int]]:
    return checksums({path: self._variables[path] for path in self._used})

  def _check_own(self, by: str, before: dict[str, list[int]]) -> None:
    """Raises a UsageError if only one worker's per-replica values have changed.

    If every worker changes its own values, they may differ, like values computed from its examples.
    """
    if not self._used or not self._cluster:
      return
    changed = [path for path, values in self._own_checksums().items() if before[path] != values]
    if len({*self._cluster.by_worker(float(zlib.crc32(repr(changed).encode()) % 2 ** 24))}) > 1:
      place = self._used.index(changed[0]) if changed else -1
      path = self._used[int(self._cluster.by_worker(place).max())]
      name = self._variables[path].name.removesuffix(":0")
      raise UsageError(f"{by} changed '{path}' ({name}), which has its own value on each replica, "
                       f"on one worker only; {_ALIKE}")

  def check_copies(self, changed_by: str = "") -> None:
    """Raises a UsageError if the copies of a variable, which must be equal, have diverged.

    All workers must call it at the same step. `changed_by` is the Python code that may have changed
    them, if known, for the error.
    """
    equal = {path: v for path, v in self._variables.items()
             if path not in self._by_replica and path not in self._own}
    for path in parted(equal, self._cluster):
      variable = self._variables[path]
      named = f"'{path}' ({variable.name.removesuffix(':0')})"
      if changed_by:
        raise UsageError(f"{changed_by} assigned the variable {named} on one worker only, or "
                         f"a different value on each; {_ALIKE}")
      remedy = ("use replicator.GlobalBatchNorm" if "moving_" in variable.name else
                "average it first with replicator.all_mean or join it with all_concat, or make the "
                "variable with aggregation=tf.VariableAggregation.MEAN, or with synchronization="
                "tf.VariableSynchronization.ON_READ if each replica keeps its own")
      raise UsageError(
          f"the variable {named} has a different value on each replica, but a checkpoint keeps "
          "one: each replica assigns a value computed from its own examples"
          f"{self.assigned_at(variable)}; {remedy}")

  def mismatches(self, saved: Snapshot) -> dict[str, str]:
    """Describes the differences from what was saved, by path."""
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
        # This process's replicas begin at `first`.
        first = self._cluster.worker_id * len(copies) if self._cluster else 0
        count = self._cluster.num_replicas if self._cluster else len(copies)
        of_all = (self._shards[path].divided(value) if path in self._shards else
                  _spread(path, variable, saved, count))
        values = list(of_all[first:first + len(copies)])
      else:
        values = [_spread(path, variable, saved, 1)[0]] * len(copies)
      for copy, its_value in zip(copies, values, strict=True):
        copy.assign(its_value)


def _plain(path: str, variable: Any) -> Any:
  if isinstance(variable, tf.random.Generator):
    return variable.state
  if not isinstance(variable, tf.Variable):
    remedy = next((words for kind, words in _REMEDIES.items() if isinstance(variable, kind)),
                  "keep its contents in a replicated.variable")
    raise UsageError(f"the step holds '{path}', a {type(variable).__name__}, which cannot be "
                     f"saved; {remedy}")
  return variable


def _may_differ(variable: Any) -> bool:
  """Returns whether each replica may have a different value."""
  return (isinstance(getattr(variable, "values", None), tuple)
          and variable.synchronization == tf.VariableSynchronization.ON_READ)


def _spread(path: str, variable: Any, values: np.ndarray, count: int) -> np.ndarray:
  """Converts values to `count` replicas: `[replicas when saved, ...] -> [count, ...]`."""
  if len(values) == count:
    return values
  if variable.aggregation == _SUM:  # Put it on one replica, so that a sum of integers stays exact.
    total = values.sum(axis=0, dtype=values.dtype)[np.newaxis]
    return np.concatenate([total, np.zeros([count - 1, *total.shape[1:]], values.dtype)])
  if not (values == values[0]).all():
    if variable.aggregation == _MEAN:
      values = values.mean(axis=0, dtype=values.dtype, keepdims=True)
    elif variable.aggregation != _FIRST:
      raise UsageError(f"the checkpoint has a value of '{path}' for each of {len(values)} "
                       f"replicas, but there are {count} now; resume on {len(values)}, or give "
                       "the variable an aggregation")
  return np.repeat(values[:1], count, axis=0)
