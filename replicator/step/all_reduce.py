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

  There are `count` groups of `size` replicas. This is replica `position` (int or int32 []) of group
  `number` (int or int32 []). Raises a UsageError if the groups differ in size, or do not hold each
  replica once.
  """

  def __init__(self, groups: Groups):
    replicas = context.num_replicas()
    self.is_whole = groups is None
    if groups is None:
      self.count, self.size = 1, replicas
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
  values = tree.map_structure(lambda x: None if x is None else tf.convert_to_tensor(x), values)
  for x in tree.flatten(values):
    if x is not None:
      if x.dtype not in WIRE:
        raise UsageError(f"{call}: tensors of {x.dtype.name} cannot travel between replicas; cast "
                         f"to one of: {', '.join(dtype.name for dtype in WIRE)}")
      if check:
        check(call, x)
  group = Group(groups)
  if context.num_replicas() > 1:
    _agree(f"{call} of {_describe(values)}{'' if groups is None else f', groups {groups}'}")
  return values, group


def _agree(call: str) -> None:
  """Records the call, and checks that the replicas of this process make the same one."""
  now = context.current()
  if now.is_step and context.in_inner_graph():
    raise UsageError(
        f"{call}: called inside a tf.while_loop, tf.cond or tf.function of the step, where "
        "replicas cannot meet; call it in the step itself, and loop over a Python range")
  now.collectives.append(call)
  tf.distribute.get_replica_context().merge_call(_compare, args=(call,))


def _compare(strategy: tf.distribute.Strategy, call: Any) -> None:
  calls = strategy.experimental_local_results(call)
  for replica, other in enumerate(calls):
    if other != calls[0]:
      raise UsageError(f"replica 0 calls {calls[0]}, but replica {replica} calls {other}; every "
                       "replica must make the same calls in the same order")


def _describe(values: Nest) -> str:
  """The nest with dtypes and shapes in place of tensors: `{'a': float32 [2, 3]}`."""
  class _Words(str):
    __repr__ = str.__str__
  return repr(tree.map_structure(
      lambda x: None if x is None else _Words(f"{x.dtype.name} {x.shape}"), values))


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
  parts = tf.split(packed, [v.shape.num_elements() for v in like])
  return [tf.reshape(part, v.shape) for part, v in zip(parts, like, strict=True)]


def map_tensors(function: Callable[[tf.Tensor], tf.Tensor], values: Nest) -> Nest:
  """Applies `function` to each tensor of a nest, and keeps `None`."""
  return tree.map_structure(lambda x: None if x is None else function(x), values)
