"""Operations across replicas, usable anywhere in a step and in plain eager code (one replica).

Every replica must make the same calls in the same order with the same structures. All leaves
of one call travel together: one collective for each dtype.

The gradient convention is that of the whole library: each replica differentiates the mean of
its own examples, and the optimizer averages over replicas. Under it the gradient of
`y = all_sum(x)` is `dx = all_sum(dy)`, and the others follow from it.
"""

from typing import Any

import tensorflow as tf
import tree

from replicator import context

Nest = Any  # any nest of tensors that dm-tree understands


def all_sum(values: Nest) -> Nest:
  """The sum over replicas of each tensor of a nest, the same on every replica."""
  if context.num_replicas() == 1:
    return values
  flat = [None if v is None else tf.convert_to_tensor(v) for v in tree.flatten(values)]
  summed: list[tf.Tensor | None] = [None] * len(flat)
  replica_context = tf.distribute.get_replica_context()
  for dtype in sorted({v.dtype for v in flat if v is not None}, key=lambda d: d.name):
    positions = [i for i, v in enumerate(flat) if v is not None and v.dtype == dtype]
    packed = _pack([flat[i] for i in positions])
    packed = replica_context.all_reduce(tf.distribute.ReduceOp.SUM, packed)
    for i, part in zip(positions, _unpack(packed, [flat[i] for i in positions]), strict=True):
      summed[i] = part
  return tree.unflatten_as(values, summed)


def all_mean(values: Nest) -> Nest:
  """The mean over replicas of each (floating) tensor of a nest, the same on every replica."""
  replicas = context.num_replicas()
  if replicas == 1:
    return values
  # Divided before the sum: a sum of many large gradients must not overflow on the way.
  scaled = tree.map_structure(lambda v: None if v is None else v / replicas, values)
  return all_sum(scaled)


def all_gather(values: Nest) -> Nest:
  """Each tensor `[...]` of every replica, stacked by replica: `[...] -> [num_replicas, ...]`.

  Computed as a sum of tensors that are zero outside the replica's own slot, so that it is
  one collective of static shape under every strategy, and differentiable to any order.
  """
  replicas = context.num_replicas()

  def in_own_slot(value: Any) -> tf.Tensor | None:
    if value is None:
      return None
    value = tf.convert_to_tensor(value)
    own = tf.equal(tf.range(replicas), tf.cast(context.replica_id(), tf.int32))
    own = tf.reshape(own, [replicas] + [1] * value.shape.rank)
    return tf.where(own, value[tf.newaxis], tf.zeros_like(value)[tf.newaxis])

  return all_sum(tree.map_structure(in_own_slot, values))


def _pack(values: list[tf.Tensor]) -> tf.Tensor:
  if len(values) == 1:
    return values[0]
  return tf.concat([tf.reshape(v, [-1]) for v in values], axis=0)


def _unpack(packed: tf.Tensor, like: list[tf.Tensor]) -> list[tf.Tensor]:
  if len(like) == 1:
    return [packed]
  parts = tf.split(packed, [v.shape.num_elements() for v in like])
  return [tf.reshape(part, v.shape) for part, v in zip(parts, like, strict=True)]
