"""How tensors of all replicas meet: one sum over all replicas for each dtype, and groups.

What the public functions of `replicator.step.collectives` have in common.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from replicator.errors import UsageError
from replicator.step import context

Nest = Any  # any nest of tensors that dm-tree understands
Groups = Sequence[Sequence[int]] | None

# What each dtype travels as: small floats are added up in float32.
WIRE = {tf.float32: tf.float32, tf.float64: tf.float64, tf.int32: tf.int32, tf.int64: tf.int64,
        tf.bfloat16: tf.float32, tf.float16: tf.float32, tf.bool: tf.int32, tf.int8: tf.int32,
        tf.uint8: tf.int32, tf.int16: tf.int32, tf.uint16: tf.int32, tf.uint32: tf.int64}


class Group:
  """Where this replica stands: group `number` of `count`, at `position` of `size` there."""

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
    """The replicas of this one's group, in its order: int32 [size]."""
    return tf.range(self.size) if self.is_whole else tf.gather(self.members, self.number)


# ---- What a call must be ------------------------------------------------------------------------


def checked_call(call: str, values: Nest, groups: Groups,
          check: Callable[[str, tf.Tensor], None] | None = None) -> tuple[Nest, Group]:
  """Checks a call, also against those of the other replicas; its tensors and the group."""
  values = tree.map_structure(lambda x: None if x is None else tf.convert_to_tensor(x), values)
  for x in tree.flatten(values):
    if x is not None:
      if x.dtype not in WIRE:
        raise UsageError(f"{call}: no tensor of {x.dtype.name} can travel between replicas; cast "
                         f"it to one of: {', '.join(dtype.name for dtype in WIRE)}")
      if check:
        check(call, x)
  group = Group(groups)
  if context.num_replicas() > 1:
    _agree(f"{call} of {_describe(values)}{'' if groups is None else f', groups {groups}'}")
  return values, group


def _agree(call: str) -> None:
  """Records the call; an error where the replicas that are traced here make different ones."""
  now = context.current()
  graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
  if now.is_step and graph is not now.graph:
    raise UsageError(
        f"{call}: called inside a tf.while_loop, tf.cond or tf.function of the step, where "
        "replicas cannot meet; call it in the step itself, and loop over a Python range")
  now.collectives.append(call)
  tf.distribute.get_replica_context().merge_call(_compare, args=(call,))


def _compare(strategy: tf.distribute.Strategy, call: Any) -> None:
  calls = strategy.experimental_local_results(call)
  for replica, other in enumerate(calls):
    if other != calls[0]:
      raise UsageError(f"replica 0 calls {calls[0]}, where replica {replica} calls {other}; every "
                       "replica must make the same calls in the same order")


def check_equal_calls(calls: list[list[str]]) -> None:
  """Raises a UsageError if some replicas made calls that others did not; of all calls so far."""
  replicas = range(len(calls))
  shortest = min(replicas, key=lambda r: len(calls[r]))
  longest = max(replicas, key=lambda r: len(calls[r]))
  made = len(calls[shortest])
  if made < len(calls[longest]):
    raise UsageError(f"replica {longest} calls {calls[longest][made]}, where replica {shortest} "
                     f"has ended its step after {made} collectives; every replica must make the "
                     "same calls in the same order")


def codes(calls: list[str], length: int = 256) -> np.ndarray:
  """A number for each of the first calls, for a comparison between processes: int64 [length]."""
  numbers = [int.from_bytes(hashlib.sha256(c.encode()).digest()[:7], "little") for c in calls]
  return np.pad(np.array(numbers[:length], np.int64), (0, max(0, length - len(numbers))))


def _describe(values: Nest) -> str:
  """The structure, with dtypes and shapes in the place of tensors: `{'a': float32 [2, 3]}`."""
  class _Words(str):
    __repr__ = str.__str__
  return repr(tree.map_structure(
      lambda x: None if x is None else _Words(f"{x.dtype.name} {x.shape}"), values))


# ---- The one exchange ---------------------------------------------------------------------------


def group_all_reduce(values: Nest, group: Group, divisor: int = 1) -> Nest:
  """The sum over the group's replicas of each tensor, divided by `divisor`."""
  if group.is_whole:
    return _exchange(values, divisor)
  slots = map_tensors(lambda x: _in_slot(x, group.number, group.count), values)
  return map_tensors(lambda x: tf.gather(x, group.number), _exchange(slots, divisor))


def group_all_gather(values: Nest, group: Group) -> Nest:
  """The tensors `[size, ...]` of the group's replicas, in its order.

  A sum of tensors that are zero outside the replica's own slot: of static shape under every
  strategy, for any number of processes, and differentiable to any order.
  """
  replicas = group.count * group.size
  stacked = _exchange(map_tensors(lambda x: _in_slot(x, context.replica_id(), replicas), values))
  if group.is_whole:
    return stacked
  return map_tensors(lambda x: tf.gather(x, group.replicas()), stacked)


def _in_slot(x: tf.Tensor, number: int | tf.Tensor, slots: int) -> tf.Tensor:
  """`[slots, ...]`: x in slot `number`, zeros in the others."""
  if slots == 1:
    return x[tf.newaxis]
  known = tf.get_static_value(number)
  if known is not None:
    return tf.pad(x[tf.newaxis], [[known, slots - 1 - known]] + [[0, 0]] * x.shape.rank)
  own = tf.reshape(tf.equal(tf.range(slots), number), [slots] + [1] * x.shape.rank)
  return tf.where(own, x[tf.newaxis], tf.zeros_like(x)[tf.newaxis])


def _exchange(values: Nest, divisor: int = 1) -> Nest:
  """The sum over all replicas of each tensor, in one collective for each dtype that travels."""
  if context.num_replicas() == 1:
    return values
  flat = tree.flatten(values)
  travelling = [None if x is None else tf.cast(x, WIRE[x.dtype]) for x in flat]
  for dtype in sorted({x.dtype for x in travelling if x is not None}, key=lambda d: d.name):
    positions = [i for i, x in enumerate(travelling) if x is not None and x.dtype == dtype]
    parts = [travelling[i] for i in positions]
    packed = _pack(parts)
    # Divided before the sum: a sum of many large gradients must not overflow on the way.
    packed = packed / divisor if divisor > 1 else packed
    packed = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, packed)
    for i, part in zip(positions, _unpack(packed, parts), strict=True):
      travelling[i] = tf.cast(part, flat[i].dtype)
  return tree.unflatten_as(values, travelling)


def _pack(values: list[tf.Tensor]) -> tf.Tensor:
  if len(values) == 1:
    return tf.identity(values[0])  # An argument of the step has no device, which some want.
  return tf.concat([tf.reshape(v, [-1]) for v in values], axis=0)


def _unpack(packed: tf.Tensor, like: list[tf.Tensor]) -> list[tf.Tensor]:
  if len(like) == 1:
    return [tf.identity(packed)]  # Its gradient is an identity, for the same reason.
  parts = tf.split(packed, [v.shape.num_elements() for v in like])
  return [tf.reshape(part, v.shape) for part, v in zip(parts, like, strict=True)]


def map_tensors(function: Callable[[tf.Tensor], tf.Tensor], values: Nest) -> Nest:
  """`function` of each tensor of a nest; `None` stays."""
  return tree.map_structure(lambda x: None if x is None else function(x), values)
