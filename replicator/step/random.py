"""Named, seeded random streams whose draws belong to the example, not to the replica.

`keras.random` and Keras layers draw the same numbers on every replica, so a GAN that samples its
noise that way trains on duplicates. Here every draw is a pure function of

    (seed of the run, name of the stream, step, number of earlier draws from it in the step,
     number of rollbacks of the run)

over the *global* batch, and each replica makes its own rows of it. Example k of step s gets the
same numbers on 1, 2, 4 or 8 replicas, in any micro-batches, on any device, and under XLA. Besides
the step and the number of rollbacks there is no state to save: a resumed run continues every stream
exactly.

Axis 0 of every draw counts the replica's examples. A step must not draw inside a `tf.while_loop`
or `tf.function` of its own, which would repeat the numbers, nor inside a `tf.cond`: a compiled step
would count the draws of both branches, and an eager step those of one. Draw before it, and pass the
numbers in. Under `tf.recompute_grad` and in a `keras.RematScope` the backward pass would draw other
numbers than the forward pass, which is refused; `replicator.recompute_grad` draws the same.
"""

import hashlib
import math
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from replicator.errors import UsageError
from replicator.step import context


def set_seed(seed: int, rollbacks: int = 0) -> None:
  """Seeds all streams, and restarts the streams that are drawn outside of steps.

  A function that is compiled already keeps its seed.

  Args:
    seed: the seed of the run.
    rollbacks: how many times the run has rolled back to a checkpoint; changes all draws.
  """
  context.run.seed, context.run.rollbacks = seed, rollbacks
  context.run.outside.draws.clear()


def seed_of(name: str) -> int:
  """A seed below 2^63 for random numbers outside of TensorFlow, such as those of an environment.

  It depends on the seed of the run and on `name` only, so it is the same in every process.
  """
  return int.from_bytes(_digest(f"seed of {name}")[:8], "little") >> 1


def normal(name: str, shape: Sequence[int], mean: float = 0.0, stddev: float = 1.0,
           dtype: str | tf.DType | None = None) -> tf.Tensor:
  """Draws from the normal distribution N(mean, stddev^2).

      z = replicator.random.normal("z", [batch.shape[0], 128])

  Args:
    name: the name of the stream. All draws differ: those of two streams, and two of one stream.
    shape: the shape of this replica's part, `[n, ...]`; axis 0 counts the replica's examples.
    mean: the mean of the distribution.
    stddev: the standard deviation of the distribution.
    dtype: a floating dtype; None is float64 in a float64 run and float32 otherwise.

  Raises:
    UsageError: the draw stands in a branch or loop of the step, or the shape is empty.
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
    return _integers(name, shape, minval, maxval, tf.as_dtype(dtype))
  result = _floating(name, dtype)
  return tf.cast(minval + (maxval - minval) * _unit(name, shape, result), result)


def bernoulli(name: str, shape: Sequence[int], p: float | tf.Tensor,
              dtype: str | tf.DType = "bool") -> tf.Tensor:
  """Draws true with probability `p`, and false otherwise; see `normal`.

  The draws are the same for every dtype and every precision of the run.

  Args:
    name: the name of the stream.
    shape: the shape of this replica's part, `[n, ...]`.
    p: a number in [0, 1], or floating probabilities that broadcast to `shape`.
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
                     f"{list(shape)}; write probabilities of that shape, or with axes of 1")
  return tf.cast(drawn, dtype)


def categorical(name: str, logits: tf.Tensor) -> tf.Tensor:
  """Draws class i with probability `softmax(logits)[i]`: `[n, ..., k] -> int32 [n, ...]`.

  It takes one uniform draw per example, in float64 whatever the precision of the run, and returns
  the first class whose cumulative probability exceeds it. See `normal`.

  Args:
    name: the name of the stream.
    logits: unnormalized log probabilities of this replica's examples. A class of -inf is never
      drawn; classes of +inf share all probability. If a logit is NaN or all are -inf, there is no
      distribution, and the class is -1.

  Raises:
    UsageError: as for `normal`, or the logits lack the axis of examples or that of classes.
  """
  logits = tf.cast(logits, tf.float64)
  if logits.shape.rank < 2 or not logits.shape[-1]:
    raise UsageError(f"random stream '{name}': logits of shape {logits.shape}; write [n, k], a row "
                     "of k classes for each example, with tf.broadcast_to if all rows are alike")
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
    raise UsageError(f"random stream '{name}': a permutation of shape {list(shape)}; write [n, k], "
                     "for each of n examples an order of its k parts")
  # With 64 bits, ties do not happen.
  return tf.argsort(_bits(name, shape, tf.uint64), axis=-1)


# How many of the random bits of a draw are dropped, so that no value rounds up to 1.
_DROPPED_BITS = {tf.float64: 12, tf.float32: 9, tf.float16: 22, tf.bfloat16: 25}


def _floating(name: str, dtype: str | tf.DType | None) -> tf.DType:
  result = tf.as_dtype(dtype or keras.config.floatx())
  if result not in _DROPPED_BITS:
    raise UsageError(f"random stream '{name}': does not draw {result.name} here; write a floating "
                     "dtype, or None for that of the run")
  return result


def _unit(name: str, shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
  """Draws from [0, 1) that `dtype` represents exactly, as float64 or else as float32."""
  # From random bits: XLA and all devices agree on bits, but not on random floats.
  kind, floats = (tf.uint64, tf.float64) if dtype == tf.float64 else (tf.uint32, tf.float32)
  dropped = _DROPPED_BITS[dtype]
  kept = tf.bitwise.right_shift(_bits(name, shape, kind), tf.cast(dropped, kind))
  return tf.cast(kept, floats) * 2.0 ** -(kind.size * 8 - dropped)


# Draws are transformed in whole vectors of a processor. The rest of a vector would go through code
# that rounds differently, and which examples are in the rest depends on the number of replicas.
_VECTOR = 64


def _erfinv_of_symmetric(name: str, shape: Sequence[int], dtype: tf.DType,
                         bound: float) -> tf.Tensor:
  """`sqrt(2) erfinv(u)` for u uniform in (-bound, bound): N(0, 1), truncated if bound < 1."""
  # Half a spacing moves points off -1 and 1.
  unit_dtype, half_a_spacing = ((tf.float64, 2.0 ** -52) if dtype == tf.float64
                                else (tf.float32, 2.0 ** -23))
  unit = tf.reshape(_unit(name, shape, unit_dtype), [-1])
  padded = tf.pad(unit, [[0, -unit.shape[0] % _VECTOR]])
  draws = math.sqrt(2.0) * tf.math.erfinv(bound * (2.0 * padded - 1.0 + half_a_spacing))
  return tf.reshape(draws[:unit.shape[0]], shape)


# ---- Random bits for the examples of this replica -----------------------------------------------

_PHILOX = 1  # TensorFlow's number for Philox4x32-10 (Salmon et al. 2011).
_SEED_KEY = [0x02461e293ec8f720]  # TensorFlow's key for the Philox that turns seeds into keys.
# In a micro-batch, rows of at least this many elements are drawn one by one; shorter rows are
# drawn for the replica's whole batch, and most are thrown away.
_LARGE_ROW = 4096

# (number of elements, key, counter) -> [elements]
_Draw = Callable[[int, tf.Tensor, tf.Tensor], tf.Tensor]


def _digest(text: str) -> bytes:
  run = context.run
  seed = f"{run.seed}+{run.rollbacks}" if run.rollbacks else f"{run.seed}"
  return hashlib.sha256(f"{seed}/{text}".encode()).digest()


def _bits(name: str, shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
  """Random bits `[n, ...]` from the stream `name`, as uint32 or uint64."""
  return _own_rows(name, shape, dtype, lambda count, key, counter: (
      tf.raw_ops.StatelessRandomUniformFullIntV2(
          shape=[count], key=key, counter=counter, alg=_PHILOX, dtype=dtype)))


def _integers(name: str, shape: Sequence[int], minval: float, maxval: float,
             dtype: tf.DType) -> tf.Tensor:
  """Random integers `[n, ...]` in `[minval, maxval)` from the stream `name`, int32 or int64."""
  if dtype not in (tf.int32, tf.int64):
    raise UsageError(f"random stream '{name}': does not draw {dtype.name}; write 'int32' and cast")
  return _own_rows(name, shape, dtype, lambda count, key, counter: (
      tf.raw_ops.StatelessRandomUniformIntV2(
          shape=[count], key=key, counter=counter, alg=_PHILOX,
          minval=tf.convert_to_tensor(minval, dtype), maxval=tf.convert_to_tensor(maxval, dtype))))


def _own_rows(name: str, shape: Sequence[int], dtype: tf.DType, draw: _Draw) -> tf.Tensor:
  """The rows of this replica and its micro-batch, from the draw for the whole global batch."""
  size, *rest = _checked(name, shape)
  row = math.prod(rest)
  now = context.current()
  if now.on_draw:
    now.on_draw(name, size)
  part = now.microbatch
  parts = part.count if part else 1
  key, counter = _fresh_key(name)
  replica = context.replica_id() if context.num_replicas() > 1 else 0
  if part and row >= _LARGE_ROW:
    # Micro-batch j has the examples j, j + parts, j + 2 parts, ... of the replica.
    first = tf.cast(replica, tf.int64) * size * parts + tf.cast(part.index, tf.int64)
    rows = tf.map_fn(lambda example: _chunk(example, row, dtype, key, counter, draw),
                     first + parts * tf.range(size, dtype=tf.int64), fn_output_signature=dtype)
  else:
    rows = _chunk(replica, size * parts * row, dtype, key, counter, draw)
    if part:
      rows = tf.gather(tf.reshape(rows, [size, parts, row]), part.index, axis=1)
  return tf.reshape(rows, shape)


def _chunk(index: int | tf.Tensor, count: int, dtype: tf.DType, key: tf.Tensor,
           counter: tf.Tensor, draw: _Draw) -> tf.Tensor:
  """The elements `[index * count, (index + 1) * count)` of a draw."""
  group = 16 // dtype.size  # Philox makes 128 bits from each value of its counter.
  first = tf.cast(index, tf.int64) * count
  counter += tf.stack([tf.cast(first // group, tf.uint64), tf.constant(0, tf.uint64)])
  if count % group == 0:
    return draw(count, key, counter)
  return tf.slice(draw(count + group, key, counter), [first % group], [count])


def _checked(name: str, shape: Sequence[int]) -> list[int]:
  if not len(shape):
    raise UsageError(f"random stream '{name}': draws for the examples of a batch; write a shape "
                     "[n, ...], such as [1], not []")
  if any(size is None for size in shape):
    raise UsageError(f"random stream '{name}': drawn with the unknown shape {list(shape)}; batches "
                     "of a step have a known size, and a Keras layer that draws should define "
                     "compute_output_shape")
  return [int(size) for size in shape]


def _fresh_key(name: str) -> tuple[tf.Tensor, tf.Tensor]:
  """The Philox key uint64 [1] and the first counter uint64 [2] of the next draw from a stream."""
  now = context.current()
  if context.in_inner_graph():
    raise UsageError(
        f"random stream '{name}': drawn inside a tf.function, tf.while_loop or tf.cond, which is "
        "traced once, so that numbers would repeat or depend on the branches; draw before it and "
        "pass the tensor in, or loop over a Python range")
  context.check_not_recomputed(f"random stream '{name}' would draw")
  draw = now.draws[name]
  now.draws[name] += 1
  digest = _digest(f"{draw}/{name}")
  seed = [int.from_bytes(digest[i:i + 8], "little", signed=True) for i in (0, 8)]
  # As `tf.random.experimental.stateless_fold_in`. What no step changes is not computed by the step.
  with tf.init_scope():
    first = tf.random.stateless_uniform([], seed, None, None, tf.int64, alg="philox").numpy()
  folded = tf.stack([first, context.step_number()])
  # The same on every device: tf.random.stateless_* derive a key from a seed in this way.
  mixed = tf.raw_ops.StatelessRandomUniformFullIntV2(
      shape=[2], key=_SEED_KEY, counter=tf.bitcast(folded, tf.uint64), alg=_PHILOX,
      dtype=tf.uint64)
  return mixed[:1], mixed * tf.constant([0, 1], tf.uint64)
