"""Values that are sharded over the replicas: each replica keeps a part of every value.

A part of a tensor of n numbers has ceil(n / replicas) consecutive ones. The last parts of a tensor
end with padding, so that all parts have the same length. The parts of several tensors are joined in
the same order on every replica:

    replica 0    first third of x | first third of y | ...
    replica 1    second third of x | second third of y | ...

They are stored in an `ON_READ` variable, whose copies differ. It knows its `Shards`, from which a
checkpoint gets the whole value, as a single replica would have it.
"""

import contextlib
import copy
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from replicator.step import context
from replicator.step.replicated import copies_of, read

import numpy as np
import tensorflow as tf

# The parts of a replica are padded to a multiple of this length, and so begin at a multiple of 64
# bytes in the parts of all replicas: TensorFlow can then take them without a copy.
_MULTIPLE = 32


class Shards:
  """The way in which tensors of the given shapes are sharded over `count` replicas.

  `parts` has the length of a replica's part of each tensor, and `length` is their sum with padding.
  `whole` is the shape of the value on a single replica, which may end with padding of its own.
  """

  def __init__(self, shapes: Sequence[Sequence[int]], count: int, whole: Sequence[int]):
    self.fill = 0.0  # The value of padding.
    self._shapes, self.count, self.whole = [tuple(shape) for shape in shapes], count, tuple(whole)
    self._sizes = [int(np.prod(shape)) for shape in self._shapes]
    self.parts = [-(-size // count) for size in self._sizes]
    self._end = -sum(self.parts) % _MULTIPLE
    self.length = sum(self.parts) + self._end

  def rows(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the parts of all replicas, padded with zeros: pieces of `[count, length]`."""
    padded = [tf.pad(tf.reshape(x, [-1]), [[0, part * self.count - size]])
              if part * self.count > size else x
              for x, size, part in zip(tensors, self._sizes, self.parts, strict=True)]
    parts = [tf.reshape(x, [self.count, part]) for x, part in zip(padded, self.parts, strict=True)]
    return [*parts, tf.zeros([self.count, self._end], parts[0].dtype)]

  def tensors(self, rows: tf.Tensor) -> list[tf.Tensor]:
    """Returns the tensors that have these parts; the inverse of `rows`."""
    ends = itertools.accumulate(self.parts)
    # Not split in one operation, so that each can be assigned before the next is copied.
    columns = [rows[:, end - part:end] for end, part in zip(ends, self.parts, strict=True)]
    return [tf.reshape(tf.reshape(x, [-1])[:size], shape)
            for x, size, shape in zip(columns, self._sizes, self._shapes, strict=True)]

  def own(self, tensors: Sequence[tf.Tensor], replica: int) -> tf.Tensor:
    """Returns the parts of one replica, padded with zeros: `[length]`."""
    found = []
    for x, size, part in zip(tensors, self._sizes, self.parts, strict=True):
      x = tf.reshape(x, [-1])[replica * part:(replica + 1) * part]
      missing = min(part, (replica + 1) * part - size)
      found.append(tf.pad(x, [[0, missing]]) if missing > 0 else x)
    return tf.concat([*found, tf.zeros([self._end], found[0].dtype)], 0)

  def mask(self, chosen: Sequence[bool]) -> tf.Tensor:
    """Returns which numbers of a replica's parts belong to chosen tensors: bool `[length]`."""
    return tf.repeat([*chosen, False], [*self.parts, self._end])

  # ---- In Python, between steps -----------------------------------------------------------------

  def joined(self, rows: np.ndarray) -> np.ndarray:
    """Joins the parts: `[count, length] -> whole`."""
    columns = np.split(rows, np.cumsum(self.parts), axis=1)[:-1]
    flat = [x.reshape(-1)[:size] for x, size in zip(columns, self._sizes, strict=True)]
    padding = np.full(int(np.prod(self.whole)) - sum(self._sizes), self.fill, rows.dtype)
    return np.concatenate([*flat, padding]).reshape(self.whole)

  def divided(self, value: np.ndarray) -> np.ndarray:
    """Splits a whole value into parts: `whole -> [count, length]`."""
    ends = list(itertools.accumulate(self._sizes))
    flat = np.split(value.reshape(-1), ends)[:len(ends)]
    padded = [np.pad(x, [0, part * self.count - len(x)], constant_values=self.fill)
              for x, part in zip(flat, self.parts, strict=True)]
    end = np.full([self.count, self._end], self.fill, value.dtype)
    return np.concatenate([*(x.reshape(self.count, -1) for x in padded), end], axis=1)


def divide(variable: Any, shards: Shards) -> None:
  """Marks an `ON_READ` variable `[shards.length]` as sharded.

  Its initial value is the same everywhere. Padding keeps that value, since an update may divide by
  it.
  """
  variable.shards = copy.copy(shards)
  variable.shards.fill = read(variable)[0]


def shards_of(variable: Any) -> Shards | None:
  """Returns how a variable is sharded over the replicas; None if it is not."""
  return vars(variable).get("shards")  # `getattr` would ask the copies.


def begin(variable: Any, values: Sequence[Any]) -> None:
  """Assigns to each copy of a sharded variable its parts of `values`, one for each tensor."""
  shards, copies = variable.shards, copies_of(variable)
  for replica, part, *of_replica in zip(
      local_replicas(variable.distribute_strategy), copies, *map(copies_of, values), strict=True):
    with tf.device(part.device):
      part.assign(shards.own(of_replica, replica))


def whole(variable: Any) -> np.ndarray:
  """Returns the whole value of a sharded variable.

  All processes of a cluster must call it together.
  """
  return variable.shards.joined(gathered([variable])[0].numpy())


def gathered(variables: Sequence[Any]) -> list[tf.Tensor]:
  """Gathers the parts of all replicas outside a step: `[count, length]` for each variable.

  All processes of a cluster must call it together.
  """
  if len(copies_of(variables[0])) == variables[0].shards.count:
    return [tf.stack([part.read_value() for part in copies_of(v)]) for v in variables]
  strategy = variables[0].distribute_strategy
  found: dict[int, tf.Tensor] = {}
  for dtype in sorted({v.dtype.name for v in variables}):  # One vector of each.
    alike = [v for v in variables if v.dtype.name == dtype]
    mine = strategy.run(lambda alike=alike: tf.concat(own(alike), 0)[tf.newaxis])
    rows = tf.split(strategy.gather(mine, axis=0), [v.shards.length for v in alike], 1)
    found.update(zip(map(id, alike), rows, strict=True))
  return [found[id(v)] for v in variables]


@contextlib.contextmanager
def exchanged(own: int, of: int) -> Iterator[None]:
  """Lets replicas exchange their parts in the body, even if each computes the global batch alone.

  A process that has all parts needs no exchange. One that has several of them, but not all, cannot
  make one, because only its first replica computes.

  Args:
    own: the number of parts that this process has.
    of: the number of parts.
  """
  now = context.current()
  before, now.as_one = now.as_one, now.as_one and not own == 1 < of
  try:
    yield
  finally:
    now.as_one = before


def own(variables: Sequence[Any]) -> list[Any]:
  """Returns this replica's copies of variables, in a step."""
  replica = own_replica()
  return [copies[replica % len(copies)] for copies in map(copies_of, variables)]


def own_replica() -> int:
  """Returns the number of this replica, in a step."""
  return int(tf.get_static_value(context.copy_id()))


def local_replicas(strategy: tf.distribute.Strategy) -> list[int]:
  """Returns the numbers of the replicas of this process."""
  numbers = strategy.experimental_distribute_values_from_function(
      lambda replica: tf.constant(replica.replica_id_in_sync_group))
  return [int(each) for each in strategy.experimental_local_results(numbers)]
