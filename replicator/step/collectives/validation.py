"""Checks the tensors and groups of a call of a collective.

Whether all replicas make the same calls is checked when the step ends; see
`replicator.strategies.agreement`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from replicator.errors import UsageError
from replicator.step import context
from replicator.step.nest import Nest, map_tensors

import tensorflow as tf
import tree

Groups = Sequence[Sequence[int]] | None

# The dtype in which tensors of each dtype travel. Half-precision floats are summed in float32.
WIRE = {tf.float32: tf.float32, tf.float64: tf.float64, tf.int32: tf.int32, tf.int64: tf.int64,
        tf.bfloat16: tf.float32, tf.float16: tf.float32, tf.bool: tf.int32, tf.int8: tf.int32,
        tf.uint8: tf.int32, tf.int16: tf.int32, tf.uint16: tf.int32, tf.uint32: tf.int64}


def as_added(x: tf.Tensor) -> tf.Tensor:
  """Casts a tensor to the dtype in which collectives move and sum it: float32 for half floats."""
  return tf.cast(x, WIRE[x.dtype])


class Group:
  """The group of this replica, and the replica's position in it.

  There are `count` groups of `size` replicas; `members` lists the replicas of each. This replica is
  at `position` (int or int32 []) in group `number` (int or int32 []). Raises a UsageError if the
  groups differ in size or do not contain each replica exactly once.
  """

  def __init__(self, groups: Groups):
    replicas = context.num_replicas()
    self.is_whole = groups is None
    if groups is None:
      self.count, self.size, self.members = 1, replicas, [list(range(replicas))]
      self.number = 0
      return
    self.members = [list(group) for group in groups]
    self.count, self.size = len(self.members), len(self.members[0]) if self.members else 0
    if (any(len(group) != self.size for group in self.members)
        or sorted(r for group in self.members for r in group) != list(range(replicas))):
      raise UsageError(f"groups = {self.members}: must be disjoint, of equal size, and together "
                       f"contain all {replicas} replicas, numbered from 0")
    places = {replica: (number, position) for number, group in enumerate(self.members)
              for position, replica in enumerate(group)}
    place = tf.gather(tf.constant([places[r] for r in range(replicas)]), context.replica_id())
    self.number, self._position = tf.unstack(place)

  @property
  def position(self) -> int | tf.Tensor:
    """The position of this replica in its group."""
    return context.replica_id() if self.is_whole else self._position  # Adds an operation.

  def own(self, x: tf.Tensor) -> tf.Tensor:
    """Selects the rows of the group's replicas, in its order: `[replicas, ...] -> [size, ...]`."""
    return x if self.is_whole else tf.gather(x, tf.gather(self.members, self.number))

  def placed(self, x: tf.Tensor) -> tf.Tensor:
    """Places the group's parts among zeros for other groups: `[size, ...] -> [replicas, ...]`."""
    if self.is_whole:
      return x
    replicas = tf.gather(self.members, self.number)
    return tf.tensor_scatter_nd_update(
        tf.zeros([self.count * self.size, *x.shape[1:]], x.dtype), replicas[:, tf.newaxis], x)


# ---- Checks of a call ---------------------------------------------------------------------------


def checked_call(call: str, values: Nest, groups: Groups,
                 check: Callable[[str, tf.Tensor], None] | None = None,
                 free_axis: int | None = None) -> tuple[Nest, Group]:
  """Checks a call; returns its nest as tensors, and the group of this replica.

  `call` is the collective's name and other arguments; `check(call, tensor)` may raise a UsageError.
  The length of `free_axis` may differ between replicas.

  Raises:
    UsageError: a tensor or the groups are invalid, or the call is in an inner graph of the step.
  """
  values = map_tensors(tf.convert_to_tensor, values)
  for x in tree.flatten(values):
    if x is not None:
      if x.dtype not in WIRE:
        raise UsageError(f"{call}: {x.dtype.name} tensors cannot be sent between replicas; cast to "
                         f"one of: {', '.join(dtype.name for dtype in WIRE)}")
      if x.shape.rank is None:
        raise UsageError(f"{call}: a tensor has an unknown number of axes; set it with "
                         "tf.ensure_shape(x, [None, ...])")
      if check:
        check(call, x)
  group = Group(groups)
  if context.num_replicas() > 1:
    said = _in_words(call, values, groups, free_axis)
    check_in_step(said)
    context.current().collectives.append(said)  # Compared with those of other replicas.
  return values, group


def check_in_step(what: str) -> None:
  """Raises a UsageError in an inner graph of the step, where replicas cannot communicate."""
  if context.current().is_step and context.in_inner_graph():
    raise UsageError(
        f"{what}: called inside a tf.while_loop, tf.cond or tf.function of the step, where "
        "replicas cannot communicate; call it directly in the step, which is compiled as a whole, "
        "and loop over a Python range")


def lengths_may_differ(values: Nest, axis: int) -> bool:
  """Returns whether the replicas must exchange the lengths of `axis` in the latest call."""
  if context.num_replicas() == 1:
    return False
  lengths = [x.shape[axis] for x in tree.flatten(values) if x is not None]
  # All workers trace the same graph. A step that runs eagerly knows only its own lengths.
  are_known = None not in lengths and (all_are_here() or not tf.executing_eagerly())
  if not are_equal_here(lengths) or not are_known:
    return True
  context.current().collectives[-1] += f", lengths {lengths}"  # Compared between workers.
  return False


def all_are_here() -> bool:
  """Returns whether all replicas are in this process."""
  strategy = tf.distribute.get_strategy()
  return len(strategy.extended.worker_devices) == strategy.num_replicas_in_sync


def are_equal_here(lengths: list[int | None]) -> bool:
  """Returns whether the replicas of this process have equal lengths; all of them must call it."""
  if context.current().is_apart:
    return True
  def compare(strategy: tf.distribute.Strategy, said: Any) -> bool:
    return all(each() == lengths for each in strategy.experimental_local_results(said))

  # In a function, because tf.distribute would unpack a list.
  return tf.distribute.get_replica_context().merge_call(compare, args=(lambda: lengths,))


def _in_words(call: str, values: Nest, groups: Groups, free_axis: int | None) -> str:
  """Describes a call: its groups, and its nest with dtypes and shapes, `{'a': float32 (2, 3)}`."""
  class _Words(str):
    __repr__ = str.__str__

  def words(x: tf.Tensor) -> str:
    shape = x.shape if free_axis is None else freed(x.shape, free_axis)
    return _Words(f"{x.dtype.name} {shape}")
  return (f"{call} of {map_tensors(words, values)!r}"
          f"{'' if groups is None else f', groups {groups}'}")


def freed(shape: tf.TensorShape, axis: int) -> tf.TensorShape:
  """Returns the shape, with an unknown length of `axis`."""
  sizes = shape.as_list()
  sizes[axis] = None
  return tf.TensorShape(sizes)
