"""Packs nests of tensors into one tensor per dtype, and moves them within groups of replicas."""

import functools
import math
from collections.abc import Callable

from replicator.step import context
from replicator.step.collectives import primitives
from replicator.step.collectives.validation import Group, as_added, freed
from replicator.step.nest import Nest, map_tensors

import tensorflow as tf
import tree


def group_sum(values: Nest, group: Group, divisor: int = 1,
              sent: Callable[[tf.Tensor], tf.Tensor] = as_added) -> Nest:
  """Sums each tensor over the group's replicas, and divides it by `divisor`: `[...] -> [...]`.

  `sent` converts each tensor to what is summed.
  """
  def move(packed: tf.Tensor) -> tf.Tensor:
    # Divided before the sum, which could overflow if the gradients are large.
    return primitives.all_reduce(packed / divisor if divisor > 1 else packed)
  if group.is_whole:
    return _moved(move, values, sent=sent)
  in_slot = lambda x: primitives.in_slot(x, group.number, group.count)
  sums = _moved(move, map_tensors(in_slot, values))
  return map_tensors(lambda x: tf.gather(x, group.number), sums)


def group_gather(values: Nest, group: Group) -> Nest:
  """Stacks the tensors of the group's replicas, in the group's order: `[...] -> [size, ...]`."""
  if context.num_replicas() == 1:
    return map_tensors(lambda x: x[tf.newaxis], values)
  return map_tensors(group.own, _moved(primitives.all_gather, values, added=1))


def gather_parts(values: Nest) -> Nest:
  """Gathers the parts of sharded values: `[n] -> [replicas, n]`; n shrinks as replicas are added.
  """
  return _moved(functools.partial(primitives.all_gather, of_parts=True), values, added=1)


def group_exchange(values: Nest, group: Group) -> Nest:
  """Sends part s of each tensor to replica s of the group: `[size, ...] -> [size, ...]`."""
  placed = map_tensors(group.placed, values)
  return map_tensors(group.own, _moved(primitives.all_to_all, placed, kept=1))


def group_scatter(values: Nest, group: Group,
                  sent: Callable[[tf.Tensor], tf.Tensor] = as_added) -> Nest:
  """Returns this replica's part of the sum over the group's replicas: `[size, ...] -> [...]`.

  `sent` converts each tensor to what is summed.
  """
  if group.is_whole and context.num_replicas() > 1:
    return _moved(primitives.reduce_scatter, values, kept=1, added=-1, sent=sent)
  return map_tensors(
      lambda x: tf.cast(tf.reduce_sum(sent(x), axis=0), x.dtype),
      group_exchange(values, group))


def group_concat(values: Nest, axis: int, group: Group) -> Nest:
  """Concatenates the tensors of the group's replicas along `axis`, in the group's order.

  Their lengths along `axis` may differ: they travel padded with zeros to the longest.
  """
  tensors = [x for x in tree.flatten(values) if x is not None]
  own = tf.stack([tf.shape(x)[axis] for x in tensors])
  everywhere = _moved(primitives.all_gather, own, added=1)
  longest, of_group = tf.reduce_max(everywhere, 0), group.own(everywhere)  # [tensors], [size, ...]
  padded = [_padded(x, axis, longest[i] - own[i]) for i, x in enumerate(tensors)]
  joined = iter([
      tf.concat([_shortened(part, axis, of_group[member, i])
                 for member, part in enumerate(tf.unstack(parts, group.size))], axis)
      for i, parts in enumerate(group_gather(padded, group))])
  return map_tensors(lambda _: next(joined), values)


def _padded(x: tf.Tensor, axis: int, zeros: tf.Tensor) -> tf.Tensor:
  paddings: list = [[0, 0]] * x.shape.rank
  paddings[axis] = [0, zeros]
  return tf.ensure_shape(tf.pad(x, paddings), freed(x.shape, axis))


def _shortened(x: tf.Tensor, axis: int, length: tf.Tensor) -> tf.Tensor:
  sizes: list = [-1] * x.shape.rank
  sizes[axis] = length
  return tf.ensure_shape(tf.slice(x, [0] * x.shape.rank, sizes), freed(x.shape, axis))


# ---- One move per dtype -------------------------------------------------------------------------


def _moved(move: Callable[[tf.Tensor], tf.Tensor], values: Nest, kept: int = 0, added: int = 0,
           sent: Callable[[tf.Tensor], tf.Tensor] = as_added) -> Nest:
  """Moves a nest of tensors, packed into one tensor per dtype.

  The first `kept` axes of all tensors are equal. `move` adds `added` axes before them; -1 if it
  removes one.
  """
  if context.num_replicas() == 1:
    return map_tensors(tf.identity, values)  # Marks values of the global batch for the doctor.
  flat = tree.flatten(values)
  travelling = [None if x is None else sent(x) for x in flat]
  for dtype in sorted({x.dtype for x in travelling if x is not None}, key=lambda d: d.name):
    positions = [i for i, x in enumerate(travelling) if x is not None and x.dtype == dtype]
    parts = [travelling[i] for i in positions]
    moved = _unpacked(move(_packed(parts, kept)), parts, kept, added)
    for i, part in zip(positions, moved, strict=True):
      travelling[i] = tf.cast(part, flat[i].dtype)
  return tree.unflatten_as(values, travelling)


def _packed(parts: list[tf.Tensor], kept: int) -> tf.Tensor:
  """Lays the tensors end to end behind their first `kept` axes."""
  if len(parts) == 1:
    return parts[0]
  return tf.concat([tf.reshape(x, [*x.shape[:kept], -1]) for x in parts], axis=kept)


def _unpacked(packed: tf.Tensor, parts: list[tf.Tensor], kept: int, added: int
              ) -> list[tf.Tensor]:
  """Splits a moved tensor into its parts; the move added `added` axes before those of `_packed`."""
  if len(parts) == 1:
    return [packed]
  begin, sizes = packed.shape[:kept + added], [_sizes(x)[kept:] for x in parts]
  flat = tf.split(packed, [math.prod(each) for each in sizes], axis=kept + added)
  return [tf.reshape(part, [*begin, *each]) for part, each in zip(flat, sizes, strict=True)]


def _sizes(x: tf.Tensor) -> list:
  """Returns the shape of a tensor, with an int32 [] for each size that is unknown to the graph."""
  return [tf.shape(x)[axis] if size is None else size for axis, size in enumerate(x.shape)]
