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
from collections.abc import Callable

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
  unit_dtype = tf.float64 if result == tf.float64 else tf.float32
  half_a_spacing = 2.0 ** -52 if result == tf.float64 else 2.0 ** -23

  def transform(unit: tf.Tensor) -> tf.Tensor:
    # The inverse of the distribution function, at points that are never exactly -1 or 1.
    draws = math.sqrt(2.0) * tf.math.erfinv(2.0 * unit - 1.0 + half_a_spacing)
    return tf.cast(mean + stddev * draws, result)

  return _from_unit_interval(name, shape, unit_dtype, transform)


def uniform(name: str, shape: list[int], minval: float = 0.0, maxval: float = 1.0,
            dtype: str | tf.DType | None = None) -> tf.Tensor:
  """Draws uniformly from `[minval, maxval)`; an integer dtype draws integers. See `normal`."""
  result = _dtype(dtype)
  if result.is_integer:
    return _own_rows(shape, lambda whole: tf.random.stateless_uniform(
        whole, _fresh_key(name), minval, maxval, result, alg="philox"))
  return _from_unit_interval(
      name, shape, result, lambda unit: tf.cast(minval + (maxval - minval) * unit, result))


def _dtype(dtype: str | tf.DType | None) -> tf.DType:
  return tf.as_dtype(dtype or keras.config.floatx())


# Of the random bits of each draw, how many are dropped, so that no value rounds up to 1.
_DROPPED_BITS = {tf.float64: 12, tf.float32: 9, tf.float16: 22, tf.bfloat16: 25}


def _from_unit_interval(name: str, shape: list[int], dtype: tf.DType,
                        transform: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
  """Applies `transform` to draws from [0, 1) that `dtype` represents exactly.

  They are made from random bits, on which XLA and all devices agree; they do not on floats.
  The whole batch is transformed, since the rounding of a row depends on where it stands.
  """
  bits = tf.uint64 if dtype == tf.float64 else tf.uint32
  floats = tf.float64 if dtype == tf.float64 else tf.float32
  dropped = _DROPPED_BITS[dtype]

  def draw(whole: list[int]) -> tf.Tensor:
    drawn = tf.random.stateless_uniform(whole, _fresh_key(name), None, None, bits, alg="philox")
    kept = tf.bitwise.right_shift(drawn, tf.cast(dropped, bits))
    return transform(tf.cast(kept, floats) * 2.0 ** -(bits.size * 8 - dropped))

  return _own_rows(shape, draw)


def _own_rows(shape: list[int], draw: Callable[[list[int]], tf.Tensor]) -> tf.Tensor:
  """Draws for the whole global batch and keeps the rows of this replica."""
  shape = [int(size) for size in shape]
  if not shape:
    raise UsageError("a random stream draws for the examples of a batch: write a shape [n, ...], "
                     "such as [1], not []")
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
