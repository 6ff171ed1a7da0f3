"""What all collectives share: one all-reduce per dtype, groups of replicas, and checked calls."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tree

from replicator.errors import UsageError
from replicator.step import context

Nest = Any  # any nest of tensors that dm-tree understands
Groups = Sequence[Sequence[int]] | None

# The dtype in which tensors of each dtype are added up. Small floats are added up in float32.
WIRE = {tf.float32: tf.float32, tf.float64: tf.float64, tf.int32: tf.int32, tf.int64: tf.int64,
        tf.bfloat16: tf.float32, tf.float16: tf.float32, tf.bool: tf.int32, tf.int8: tf.int32,
        tf.uint8: tf.int32, tf.int16: tf.int32, tf.uint16: tf.int32, tf.uint32: tf.int64}


class Group:
  """The group of this replica, and the replica's place in it.

  There are `count` groups of `size` replicas, the `members` of each. This is replica `position`
  (int or int32 []) of group `number` (int or int32 []). Raises a UsageError if the groups differ in
  size, or do not hold each replica once.
  """

  def __init__(self, groups: Groups):
    replicas = context.num_replicas()
    self.is_whole = groups is None
    if groups is None:
      self.count, self.size, self.members = 1, replicas, [list(range(replicas))]
      self.number, self.position = 0, context.replica_id()
      return
    self.members = [list(group) for group in groups]
    self.count, self.size = len(self.members), len(self.members[0]) if self.members else 0
    if (any(len(group) != self.size for group in self.members)
        or sorted(r for group in self.members for r in group) != list(range(replicas))):
      raise UsageError(f"groups = {self.members}: must be disjoint, of equal size, and together "
                       f"hold all {replicas} replicas, which are numbered from 0")
    places = {replica: (number, position) for number, group in enumerate(self.members)
              for position, replica in enumerate(group)}
    place = tf.gather(tf.constant([places[r] for r in range(replicas)]), context.replica_id())
    self.number, self.position = tf.unstack(place)

  def replicas(self) -> tf.Tensor:
    """The replicas of this replica's group, in the group's order: int32 [size]."""
    return tf.range(self.size) if self.is_whole else tf.gather(self.members, self.number)


# ---- Checks of a call ---------------------------------------------------------------------------


def checked_call(call: str, values: Nest, groups: Groups,
                 check: Callable[[str, tf.Tensor], None] | None = None) -> tuple[Nest, Group]:
  """Checks a call on all replicas; returns its nest as tensors, and the group of this replica.

  `call` is the collective's name and other arguments; `check(call, tensor)` may raise a UsageError.

  Raises:
    UsageError: a tensor or the groups do not fit, another replica makes another call, or the call
      is made in a graph inside the step.
  """
  values = _checked(call, values, check)
  group = Group(groups)
  if context.num_replicas() > 1:
    _agree(_in_words(call, values, groups))
  return values, group


def checked_concat(call: str, values: Nest, axis: int, groups: Groups,
                   check: Callable[[str, tf.Tensor], None]) -> tuple[Nest, Group, bool]:
  """`checked_call` for tensors that may differ in the length of `axis` from replica to replica.

  Also returns whether they may: whether the lengths must be exchanged when the step runs.
  """
  values, group = _checked(call, values, check), Group(groups)
  if context.num_replicas() == 1:
    return values, group, False
  lengths = [x.shape[axis] for x in tree.flatten(values) if x is not None]
  equal = _agree(_in_words(call, values, groups, axis), lengths)
  if equal:  # In this process; what all workers compare are the words.
    context.current().collectives[-1] += f", lengths {lengths}"
  return values, group, not equal


def _checked(call: str, values: Nest, check: Callable[[str, tf.Tensor], None] | None) -> Nest:
  """The nest as tensors, each of which can travel."""
  values = map_tensors(tf.convert_to_tensor, values)
  for x in tree.flatten(values):
    if x is not None:
      if x.dtype not in WIRE:
        raise UsageError(f"{call}: tensors of {x.dtype.name} cannot travel between replicas; cast "
                         f"to one of: {', '.join(dtype.name for dtype in WIRE)}")
      if x.shape.rank is None:
        raise UsageError(f"{call}: a tensor has an unknown number of axes; say how many it has, "
                         "with tf.ensure_shape(x, [None, ...])")
      if check:
        check(call, x)
  return values


def _agree(call: str, lengths: Sequence[int | None] = ()) -> bool:
  """Records the call, and checks that the replicas of this process make the same one.

  Returns whether the `lengths`, which may differ, are known and the same everywhere.
  """
  now = context.current()
  if now.is_step and context.in_inner_graph():
    raise UsageError(
        f"{call}: called inside a tf.while_loop, tf.cond or tf.function of the step, where "
        "replicas cannot meet; call it in the step itself, and loop over a Python range")
  now.collectives.append(call)
  return tf.distribute.get_replica_context().merge_call(_compare, args=(call, repr(lengths)))


def _compare(strategy: tf.distribute.Strategy, call: Any, lengths: Any) -> bool:
  calls = strategy.experimental_local_results(call)
  for replica, other in enumerate(calls):
    if other != calls[0]:
      raise UsageError(f"replica 0 calls {calls[0]}, but replica {replica} calls {other}; every "
                       "replica must make the same calls in the same order")
  # Each worker traces the same graph. A step that runs eagerly knows its own lengths only.
  are_all_here = len(calls) == strategy.num_replicas_in_sync or not tf.executing_eagerly()
  of_replicas = set(strategy.experimental_local_results(lengths))
  return are_all_here and len(of_replicas) == 1 and "None" not in of_replicas.pop()


def _in_words(call: str, values: Nest, groups: Groups, free_axis: int | None = None) -> str:
  """The call, its groups, and its nest with dtypes and shapes: `{'a': float32 (2, 3)}`."""
  class _Words(str):
    __repr__ = str.__str__

  def words(x: tf.Tensor) -> str:
    shape = x.shape if free_axis is None else tf.TensorShape(_free_shape(x, free_axis))
    return _Words(f"{x.dtype.name} {shape}")
  return (f"{call} of {map_tensors(words, values)!r}"
          f"{'' if groups is None else f', groups {groups}'}")


# ---- The all-reduce -----------------------------------------------------------------------------


def group_all_reduce(values: Nest, group: Group, divisor: int = 1) -> Nest:
  """The sum of each tensor over the group's replicas, divided by `divisor`: `[...] -> [...]`."""
  if group.is_whole:
    return _all_reduce(values, divisor)
  slots = map_tensors(lambda x: _in_slot(x, group.number, group.count), values)
  return map_tensors(lambda x: tf.gather(x, group.number), _all_reduce(slots, divisor))


def group_all_gather(values: Nest, group: Group) -> Nest:
  """The tensors of the group's replicas, stacked in the group's order: `[...] -> [size, ...]`.

  They are summed with zeros in the other slots: the shape of the result is static under every
  strategy, and it is differentiable to any order.
  """
  replicas = group.count * group.size
  stacked = _all_reduce(map_tensors(lambda x: _in_slot(x, context.replica_id(), replicas), values))
  if group.is_whole:
    return stacked
  return map_tensors(lambda x: tf.gather(x, group.replicas()), stacked)


def group_concat(values: Nest, axis: int, group: Group) -> Nest:
  """The tensors of the group's replicas, of any lengths along `axis`, joined in the group's order.

  They are summed with zeros in the places of the others.
  """
  tensors = [x for x in tree.flatten(values) if x is not None]
  own = tf.stack([tf.shape(x)[axis] for x in tensors])
  by_replica = _all_reduce(_in_slot(own, context.replica_id(), group.count * group.size))
  by_group = tf.gather(by_replica, group.members)  # [count, size, tensors]
  of_group = by_group[group.number]
  before, total = tf.reduce_sum(of_group[:group.position], 0), tf.reduce_sum(of_group, 0)
  longest = tf.reduce_max(tf.reduce_sum(by_group, 1), 0)  # All groups travel together.
  after = longest - before - own
  joined = group_all_reduce(
      [_padded(x, axis, before[i], after[i]) for i, x in enumerate(tensors)], group)
  if not group.is_whole:
    joined = [tf.split(x, [total[i], longest[i] - total[i]], axis)[0]
              for i, x in enumerate(joined)]
  results = iter(joined)
  return map_tensors(lambda _: next(results), values)


def _padded(x: tf.Tensor, axis: int, before: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
  """The tensor with so many zeros before and after it along `axis`."""
  paddings: list = [[0, 0]] * x.shape.rank
  paddings[axis] = [before, after]
  return tf.ensure_shape(tf.pad(x, paddings), _free_shape(x, axis))


def _free_shape(x: tf.Tensor, axis: int) -> list[int | None]:
  """The shape of a tensor, with an unknown length of `axis`."""
  shape = x.shape.as_list()
  shape[axis] = None
  return shape


def _in_slot(x: tf.Tensor, number: int | tf.Tensor, slots: int) -> tf.Tensor:
  """A tensor `[slots, ...]` with x in slot `number` and zeros elsewhere."""
  if slots == 1:
    return x[tf.newaxis]
  known = tf.get_static_value(number)
  if known is not None:
    return tf.pad(x[tf.newaxis], [[known, slots - 1 - known]] + [[0, 0]] * x.shape.rank)
  own = tf.reshape(tf.equal(tf.range(slots), number), [slots] + [1] * x.shape.rank)
  return tf.where(own, x[tf.newaxis], tf.zeros_like(x)[tf.newaxis])


def _all_reduce(values: Nest, divisor: int = 1) -> Nest:
  if context.num_replicas() == 1:
    return values
  flat = tree.flatten(values)
  travelling = [None if x is None else tf.cast(x, WIRE[x.dtype]) for x in flat]
  for dtype in sorted({x.dtype for x in travelling if x is not None}, key=lambda d: d.name):
    positions = [i for i, x in enumerate(travelling) if x is not None and x.dtype == dtype]
    parts = [travelling[i] for i in positions]
    packed = _pack(parts)
    # Divided before the sum, which could overflow if the replicas' gradients are large.
    packed = packed / divisor if divisor > 1 else packed
    packed = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, packed)
    for i, part in zip(positions, _unpack(packed, parts), strict=True):
      travelling[i] = tf.cast(part, flat[i].dtype)
  return tree.unflatten_as(values, travelling)


def _pack(values: list[tf.Tensor]) -> tf.Tensor:
  if len(values) == 1:
    return tf.identity(values[0])  # Some strategies need a device; arguments of a step have none.
  return tf.concat([tf.reshape(v, [-1]) for v in values], axis=0)


def _unpack(packed: tf.Tensor, like: list[tf.Tensor]) -> list[tf.Tensor]:
  if len(like) == 1:
    return [tf.identity(packed)]  # For the same reason, its gradient is an identity.
  sizes = [v.shape.num_elements() for v in like]  # None where the shape is not known.
  parts = tf.split(
      packed, [tf.size(v) if n is None else n for v, n in zip(like, sizes, strict=True)])
  return [tf.reshape(part, v.shape) if n is not None
          else tf.ensure_shape(tf.reshape(part, tf.shape(v)), v.shape)
          for part, v, n in zip(parts, like, sizes, strict=True)]


def map_tensors(function: Callable[[tf.Tensor], tf.Tensor], values: Nest) -> Nest:
  """Applies `function` to each tensor of a nest, and keeps `None`."""
  return tree.map_structure(lambda x: None if x is None else function(x), values)
