"""Named, seeded random streams whose draws belong to the example, not to the replica.

`keras.random` and Keras layers draw the same numbers on every replica, so that a GAN which
samples its noise that way trains on duplicates. Here every draw is a pure function of

    (seed of the run, name of the stream, step, how many draws of that name came before in it)

over the *global* batch, of which each replica takes its own rows: example k of step s gets
the same numbers on 1, 2, 4 or 8 replicas, on any kind of device and under XLA. There is no
state to save beyond the step, so that a resumed run continues every stream exactly.
"""

import hashlib
import math

import keras
import tensorflow as tf

from replicator import context
from replicator.errors import UsageError

_seed = 0


def set_seed(seed: int) -> None:
  """Seeds all streams, and restarts those drawn outside of steps."""
  global _seed
  _seed = seed
  context.reset()


def normal(name: str, shape: list[int], mean: float = 0.0, stddev: float = 1.0,
           dtype: str | tf.DType | None = None) -> tf.Tensor:
  """Draws from N(mean, stddev^2).

  Args:
    name: the stream. Two streams never coincide, and neither do two draws from one.
    shape: of this replica's part `[n, ...]`; axis 0 counts the replica's examples.
    mean: of the distribution.
    stddev: of the distribution.
    dtype: floating; by default float64 in a float64 run and float32 otherwise.

  Raises:
    UsageError: drawn where it would repeat, in a loop or function traced once (see `_fresh_key`).
  """
  result = _dtype(dtype)
  # The inverse of the distribution function, at a point that is never exactly -1 or 1.
  half_open = 2.0 * _unit_interval(name, shape, result) - 1.0
  half_a_spacing = 2.0 ** -24 if result.size <= 4 else 2.0 ** -53
  draws = math.sqrt(2.0) * tf.math.erfinv(half_open + half_a_spacing)
  return tf.cast(mean + stddev * draws, result)


def uniform(name: str, shape: list[int], minval: float = 0.0, maxval: float = 1.0,
            dtype: str | tf.DType | None = None) -> tf.Tensor:
  """Draws uniformly from `[minval, maxval)`; an integer dtype draws integers. See `normal`."""
  result = _dtype(dtype)
  if result.is_integer:
    return _own_rows(shape, lambda whole: tf.random.stateless_uniform(
        whole, _fresh_key(name), minval, maxval, result, alg="philox"))
  return tf.cast(minval + (maxval - minval) * _unit_interval(name, shape, result), result)


def _dtype(dtype: str | tf.DType | None) -> tf.DType:
  return tf.as_dtype(dtype or keras.config.floatx())


def _unit_interval(name: str, shape: list[int], dtype: tf.DType) -> tf.Tensor:
  """Uniform in [0, 1): float64 multiples of 2^-52 for float64, else float32 ones of 2^-23.

  Made from random bits, which XLA and the other devices agree on; they do not on floats.
  """
  bits, shift, result = (
      (tf.uint64, 12, tf.float64) if dtype == tf.float64 else (tf.uint32, 9, tf.float32))
  drawn = _own_rows(shape, lambda whole: tf.random.stateless_uniform(
      whole, _fresh_key(name), None, None, bits, alg="philox"))
  kept = tf.bitwise.right_shift(drawn, tf.cast(shift, bits))
  return tf.cast(kept, result) * 2.0 ** -(bits.size * 8 - shift)


def _own_rows(shape, draw):
  """Draws for the whole global batch and keeps the rows of this replica."""
  shape = [int(size) for size in shape]
  replicas = context.num_replicas()
  if replicas == 1:
    return draw(shape)
  whole = draw([shape[0] * replicas, *shape[1:]])
  by_replica = tf.reshape(whole, [replicas, *shape])
  return tf.gather(by_replica, context.replica_id())


def _fresh_key(name: str) -> tf.Tensor:
  """The Philox key of the next draw from stream `name`: int64 [2]."""
  now = context.current()
  if not tf.executing_eagerly() and _traced_apart_from(now.graph):
    raise UsageError(
        f"random stream '{name}': drawn inside a tf.function or tf.while_loop, which is traced "
        "once, so every pass would get the same numbers; draw before it and pass the tensor in, "
        "or loop over a Python range")
  draw = now.draws[name]
  now.draws[name] += 1
  digest = hashlib.sha256(f"{_seed}/{draw}/{name}".encode()).digest()
  key = [int.from_bytes(digest[i:i + 8], "little", signed=True) for i in (0, 8)]
  return tf.random.experimental.stateless_fold_in(
      tf.constant(key, tf.int64), context.step_number(), alg="philox")


def _traced_apart_from(step_graph) -> bool:
  graph = tf.compat.v1.get_default_graph()
  # A branch of a tf.cond is traced once and run at most once: a draw there is unique.
  while graph is not step_graph and type(graph).__name__ == "CondBranchFuncGraph":
    graph = graph.outer_graph
  return graph is not step_graph
