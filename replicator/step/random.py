"""Named, seeded random streams, which draw per example, not per replica.

`keras.random` and Keras layers draw the same numbers on every replica, so a GAN that samples its
noise that way trains on duplicates. Here every draw is a pure function of

    (seed of the run, name of the stream, step, number of earlier draws from it in the step,
     number of rollbacks of the run)

over the *global* batch, and each replica draws only its own rows. Example k of step s gets the
same numbers on 1, 2, 4 or 8 replicas, in any micro-batches, on any device, and under XLA. The only
state to save is the step and the number of rollbacks, so a resumed run continues every stream
exactly.

Axis 0 of every draw holds the replica's examples. A step must not draw inside its own
`tf.while_loop` or `tf.function`, which would repeat the numbers, nor inside a `tf.cond`: a compiled
step would count the draws of both branches, and an eager step those of one. Draw before it, and
pass the numbers in.

Under `tf.recompute_grad` and in a `keras.RematScope`, the forward and backward passes would draw
different numbers, which raises an error; under `replicator.recompute_grad` they agree.
"""

import math
from collections.abc import Sequence

from replicator.errors import UsageError
from replicator.step import random_bits
from replicator.step.random_bits import seed_of as seed_of
from replicator.step.random_bits import set_seed as set_seed

import keras
import tensorflow as tf


def normal(name: str, shape: Sequence[int], mean: float = 0.0, stddev: float = 1.0,
           dtype: str | tf.DType | None = None) -> tf.Tensor:
  """Draws from the normal distribution N(mean, stddev^2).

      z = replicator.random.normal("z", [batch.shape[0], 128])

  Args:
    name: the name of the stream. Different streams, and successive draws from one stream, differ.
    shape: the shape of this replica's part, `[n, ...]`; axis 0 holds the replica's examples.
    mean: the mean of the distribution.
    stddev: the standard deviation of the distribution.
    dtype: a floating-point dtype; None is float64 in a float64 run and float32 otherwise.

  Raises:
    UsageError: the draw is in a branch or loop of the step, or the shape is empty.
  """
  result = _floating(name, dtype)
  return tf.cast(mean + stddev * _erfinv_of_symmetric(name, shape, result, 1.0), result)


def truncated_normal(name: str, shape: Sequence[int], mean: float = 0.0, stddev: float = 1.0,
                     dtype: str | tf.DType | None = None) -> tf.Tensor:
  """Draws from N(mean, stddev^2) under the condition |x - mean| <= 2 stddev; see `normal`.

  The standard deviation of the draws is 0.880 stddev.
  """
  result = _floating(name, dtype)
  draws = _erfinv_of_symmetric(name, shape, result, math.erf(math.sqrt(2.0)))
  return tf.cast(mean + stddev * draws, result)


def uniform(name: str, shape: Sequence[int], minval: float = 0.0, maxval: float = 1.0,
            dtype: str | tf.DType | None = None) -> tf.Tensor:
  """Draws uniformly from `[minval, maxval)`; integers for an integer dtype. See `normal`.

  Raises:
    UsageError: as for `normal`, or the dtype is an integer other than int32 and int64.
  """
  if dtype and tf.as_dtype(dtype).is_integer:
    return random_bits.integers(name, shape, minval, maxval, tf.as_dtype(dtype))
  result = _floating(name, dtype)
  drawn = tf.cast(minval + (maxval - minval) * _unit(name, shape, result), result)
  begin, end = tf.cast(minval, result), tf.cast(maxval, result)
  # Rounding may give `maxval`, which is replaced by `minval`.
  return tf.where(tf.where(begin < end, drawn >= end, drawn <= end), begin, drawn)


def bernoulli(name: str, shape: Sequence[int], p: float | tf.Tensor,
              dtype: str | tf.DType = "bool") -> tf.Tensor:
  """Draws true with probability `p`, and false otherwise; see `normal`.

  The draws are the same for every dtype and every precision of the run.

  Args:
    name: the name of the stream.
    shape: the shape of this replica's part, `[n, ...]`.
    p: a number in [0, 1], or floating-point probabilities that broadcast to `shape`.
    dtype: bool, or a dtype in which true is 1 and false is 0.

  Raises:
    UsageError: as for `normal`, or p is outside [0, 1] or does not broadcast to the shape.
  """
  if isinstance(p, int | float) and not 0 <= p <= 1:
    raise UsageError(f"random stream '{name}': p = {p} is not a probability; write a number in "
                     "[0, 1]")
  p = tf.cast(p, tf.float32)
  drawn = _unit(name, shape, tf.float32) < p
  if drawn.shape != shape:
    raise UsageError(f"random stream '{name}': p of shape {p.shape} does not broadcast to "
                     f"{list(shape)}; pass probabilities of that shape, or with axes of size 1")
  return tf.cast(drawn, dtype)


def categorical(name: str, logits: tf.Tensor) -> tf.Tensor:
  """Draws class i with probability `softmax(logits)[i]`: `[n, ..., k] -> int32 [n, ...]`.

  It takes one uniform draw per example, in float64 whatever the precision of the run, and returns
  the first class whose cumulative probability exceeds it. See `normal`.

  Args:
    name: the name of the stream.
    logits: unnormalized log probabilities of this replica's examples. A class with -inf is never
      drawn; classes with +inf share all the probability. If a logit is NaN or all are -inf, there
      is no distribution, and the class is -1.

  Raises:
    UsageError: as for `normal`, or the logits lack an axis of examples or of classes.
  """
  logits = tf.cast(logits, tf.float64)
  if logits.shape.rank < 2 or not logits.shape[-1]:
    raise UsageError(f"random stream '{name}': logits of shape {logits.shape}; pass [n, k], a row "
                     "of k classes for each example, with tf.broadcast_to if all rows are equal")
  largest = tf.reduce_max(logits, -1, keepdims=True)
  # The difference of equal infinities is NaN.
  weights = tf.exp(tf.where(logits == largest, tf.zeros_like(logits), logits - largest))
  cumulative = tf.cumsum(weights, -1)
  draws = _unit(name, logits.shape[:-1], tf.float64)[..., tf.newaxis] * cumulative[..., -1:]
  drawn = tf.argmax(tf.cast(cumulative > draws, tf.int32), -1, tf.int32)
  is_nothing = tf.reduce_any(tf.math.is_nan(logits), -1) | (largest[..., 0] == -math.inf)
  return tf.where(is_nothing, -1, drawn)


def permutation(name: str, shape: Sequence[int]) -> tf.Tensor:
  """Draws a permutation of `0 ... k - 1` for each example: int32 `[n, ..., k]`. See `normal`.

  To shuffle the parts of each example, write
  `tf.gather(x, random.permutation("order", [n, k]), batch_dims=1)`. It cannot shuffle the examples
  of the global batch, because a replica would need rows that other replicas hold.

  Raises:
    UsageError: as for `normal`, or the shape has fewer than two axes.
  """
  if len(shape) < 2:
    raise UsageError(f"random stream '{name}': a permutation of shape {list(shape)}; pass [n, k], "
                     "an order of k parts for each of n examples")
  # With 64 bits, ties do not happen.
  return tf.argsort(random_bits.bits(name, shape, tf.uint64), axis=-1)


# How many of the random bits of a draw are dropped, so that no value rounds up to 1.
_DROPPED_BITS = {tf.float64: 12, tf.float32: 9, tf.float16: 22, tf.bfloat16: 25}


def _floating(name: str, dtype: str | tf.DType | None) -> tf.DType:
  result = tf.as_dtype(dtype or keras.config.floatx())
  if result not in _DROPPED_BITS:
    raise UsageError(f"random stream '{name}': cannot draw {result.name} here; pass a "
                     "floating-point dtype, or None for that of the run")
  return result


def _unit(name: str, shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
  """Draws numbers in [0, 1) that `dtype` represents exactly, as float64 or else as float32."""
  # From random bits: XLA and all devices agree on bits, but not on random floats.
  kind, floats = (tf.uint64, tf.float64) if dtype == tf.float64 else (tf.uint32, tf.float32)
  dropped = _DROPPED_BITS[dtype]
  kept = tf.bitwise.right_shift(random_bits.bits(name, shape, kind), tf.cast(dropped, kind))
  return tf.cast(kept, floats) * 2.0 ** -(kind.size * 8 - dropped)


# Draws are transformed in full SIMD vectors. A partial vector would go through code that rounds
# differently, and which examples end up in it depends on the number of replicas.
_VECTOR = 64


def _erfinv_of_symmetric(name: str, shape: Sequence[int], dtype: tf.DType,
                         bound: float) -> tf.Tensor:
  """Draws `sqrt(2) erfinv(u)`, u uniform in (-bound, bound): N(0, 1), truncated if bound < 1."""
  # Half a spacing moves points off -1 and 1.
  unit_dtype, half_a_spacing = ((tf.float64, 2.0 ** -52) if dtype == tf.float64
                                else (tf.float32, 2.0 ** -23))
  unit = tf.reshape(_unit(name, shape, unit_dtype), [-1])
  padded = tf.pad(unit, [[0, -unit.shape[0] % _VECTOR]])
  draws = math.sqrt(2.0) * tf.math.erfinv(bound * (2.0 * padded - 1.0 + half_a_spacing))
  return tf.reshape(draws[:unit.shape[0]], shape)
