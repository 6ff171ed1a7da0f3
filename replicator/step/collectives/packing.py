"""Nests of tensors packed into one tensor per dtype, to travel in groups of replicas."""

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
  """The sum of each tensor over the group's replicas, divided by `divisor`: `[...] -> [...]`.

  The sum is that of `sent(tensor)`.
  """
  def move(packed: tf.Tensor) -> tf.Tensor:
    # Divided before the sum, which could overflow if the replicas' gradients are large.
    return primitives.all_reduce(packed / divisor if divisor > 1 else packed)
  if group.is_whole:
    return _moved(move, values, sent=sent)
  in_slot = lambda x: primitives.in_slot(x, group.number, group.count)
  sums = _moved(move, map_tensors(in_slot, values))
  return map_tensors(lambda x: tf.gather(x, group.number), sums)


def group_gather(values: Nest, group: Group) -> Nest:
  """The tensors of the group's replicas, in the group's order: `[...] -> [size, ...]`."""
  if context.num_replicas() == 1:
    return map_tensors(lambda x: x[tf.newaxis], values)
  return map_tensors(group.own, _moved(primitives.all_gather, values, added=1))


def gather_parts(values: Nest) -> Nest:
  """The parts that all replicas have of values: `[n] -> [replicas, n]`, n smaller on more replicas.
  """
  return _moved(functools.partial(primitives.all_gather, of_parts=True), values, added=1)


def group_exchange(values: Nest, group: Group) -> Nest:
  """Part r of the tensors of the group's replicas: `[size, ...] -> [size, ...]`."""
  placed = map_tensors(group.placed, values)
  return map_tensors(group.own, _moved(primitives.all_to_all, placed, kept=1))


def group_scatter(values: Nest, group: Group,
                  sent: Callable[[tf.Tensor], tf.Tensor] = as_added) -> Nest:
  """This replica's part of the sum over the group's replicas: `[size, ...] -> [...]`.

  The sum is that of `sent(tensor)`.
  """
  if group.is_whole and context.num_replicas() > 1:
    return _moved(primitives.reduce_scatter, values, kept=1, added=-1, sent=sent)
  return map_tensors(
      lambda x: tf.cast(tf.reduce_sum(sent(x), axis=0), x.dtype),
      group_exchange(values, group))


def group_concat(values: Nest, axis: int, group: Group) -> Nest:
  """The tensors of the group's replicas, of any lengths along `axis`, joined in the group's order.

  They travel with zeros up to the longest.
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


# ---- One move for each dtype --------------------------------------------------------------------


def _moved(move: Callable[[tf.Tensor], tf.Tensor], values: Nest, kept: int = 0, added: int = 0,
           sent: Callable[[tf.Tensor], tf.Tensor] = as_added) -> Nest:
  """Moves a nest. The first `kept` axes of its tensors are equal; a move adds `added` before."""
  if context.num_replicas() == 1:
    return map_tensors(tf.identity, values)  # The doctor sees where the global batch is.
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
  """The tensors, end to end behind their first `kept` axes."""
  if len(parts) == 1:
    return parts[0]
  return tf.concat([tf.reshape(x, [*x.shape[:kept], -1]) for x in parts], axis=kept)


def _unpacked(packed: tf.Tensor, parts: list[tf.Tensor], kept: int, added: int
              ) -> list[tf.Tensor]:
  """The moved parts of a packed tensor, which has `added` axes before the axes of `_packed`."""
  if len(parts) == 1:
    return [packed]
  begin, sizes = packed.shape[:kept + added], [_sizes(x)[kept:] for x in parts]
  flat = tf.split(packed, [math.prod(each) for each in sizes], axis=kept + added)
  return [tf.reshape(part, [*begin, *each]) for part, each in zip(flat, sizes, strict=True)]


def _sizes(x: tf.Tensor) -> list:
  """The shape of a tensor; an int32 [] where the graph does not know it."""
  return [tf.shape(x)[axis] if size is None else size for axis, size in enumerate(x.shape)]
