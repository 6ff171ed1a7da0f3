"""Joins the replicas' parts of a batch, which may hold any numbers and strings."""

from replicator.step.collectives import collectives
from replicator.step.nest import Nest

import tensorflow as tf
import tree


def joined(batch: Nest) -> Nest:
  """Concatenates all replicas' examples, without gradients: `[n, ...] -> [replicas * n, ...]`.

  Collectives move only real numbers, so complex tensors travel as two parts and strings as bytes.
  """
  flat = tree.flatten(batch)
  arrived = collectives.all_concat([None if x is None else _as_numbers(x) for x in flat])
  return tree.unflatten_as(batch, [None if x is None else _from_numbers(numbers, x.dtype)
                                   for x, numbers in zip(flat, arrived, strict=True)])


def _as_numbers(x: tf.Tensor) -> Nest:
  if x.dtype.is_complex:
    return tf.math.real(x), tf.math.imag(x)
  if x.dtype == tf.string:
    lengths = tf.strings.length(x)
    longest = collectives.all_max(tf.reduce_max(lengths))
    return tf.io.decode_raw(x, tf.uint8, fixed_length=tf.maximum(longest, 1)), lengths
  return x


def _from_numbers(numbers: Nest, dtype: tf.DType) -> tf.Tensor:
  if dtype.is_complex:
    return tf.complex(*numbers)
  if dtype == tf.string:
    values, lengths = numbers
    letters = tf.gather([bytes([value]) for value in range(256)], tf.cast(values, tf.int32))
    return tf.strings.substr(tf.strings.reduce_join(letters, -1), tf.zeros_like(lengths), lengths)
  return numbers
