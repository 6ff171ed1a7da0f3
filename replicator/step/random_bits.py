"""Random bits for the examples of this replica; `replicator.random` turns them into numbers."""

import hashlib
import math
from collections.abc import Callable, Sequence

from replicator.errors import UsageError
from replicator.step import context

import tensorflow as tf

_PHILOX = 1  # TensorFlow's number for Philox4x32-10 (Salmon et al. 2011).
_SEED_KEY = [0x02461e293ec8f720]  # TensorFlow's key for the Philox that turns seeds into keys.
# In a micro-batch, rows of at least this many elements are drawn one by one. Shorter rows are drawn
# for the replica's whole batch, and most are thrown away.
_LARGE_ROW = 4096

# (number of elements, key, counter) -> [elements]
_Draw = Callable[[int, tf.Tensor, tf.Tensor], tf.Tensor]


def set_seed(seed: int, rollbacks: int = 0) -> None:
  """Seeds all streams, and restarts those that are drawn from outside of steps.

  Functions that are already compiled keep the old seed.

  Args:
    seed: the seed of the run.
    rollbacks: how many times the run has rolled back to a checkpoint; changes all draws.
  """
  context.run.seed, context.run.rollbacks = seed, rollbacks
  context.run.outside.draws.clear()


def seed_of(name: str) -> int:
  """Returns a seed below 2^63 for random numbers outside of TensorFlow, such as an environment's.

  It depends only on the seed of the run and on `name`, so it is the same in every process.
  """
  return int.from_bytes(_digest(f"seed of {name}")[:8], "little") >> 1


def _digest(text: str) -> bytes:
  run = context.run
  seed = f"{run.seed}+{run.rollbacks}" if run.rollbacks else f"{run.seed}"
  return hashlib.sha256(f"{seed}/{text}".encode()).digest()


def bits(name: str, shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
  """Draws random bits `[n, ...]` from the stream `name`, as uint32 or uint64."""
  return _own_rows(name, shape, dtype, lambda count, key, counter: (
      tf.raw_ops.StatelessRandomUniformFullIntV2(
          shape=[count], key=key, counter=counter, alg=_PHILOX, dtype=dtype)))


def integers(name: str, shape: Sequence[int], minval: float, maxval: float,
             dtype: tf.DType) -> tf.Tensor:
  """Draws integers `[n, ...]` in `[minval, maxval)` from the stream `name`, int32 or int64."""
  if dtype not in (tf.int32, tf.int64):
    raise UsageError(f"random stream '{name}': cannot draw {dtype.name}; pass 'int32' and cast")
  return _own_rows(name, shape, dtype, lambda count, key, counter: (
      tf.raw_ops.StatelessRandomUniformIntV2(
          shape=[count], key=key, counter=counter, alg=_PHILOX,
          minval=tf.convert_to_tensor(minval, dtype), maxval=tf.convert_to_tensor(maxval, dtype))))


def _own_rows(name: str, shape: Sequence[int], dtype: tf.DType, draw: _Draw) -> tf.Tensor:
  """Returns the rows of this replica and micro-batch from the draw for the global batch."""
  size, *rest = _checked(name, shape)
  row = math.prod(rest)
  now = context.current()
  for hook in () if now.is_recomputing else now.hooks:
    hook.drawn(name, size)
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
  """Returns the elements `[index * count, (index + 1) * count)` of a draw."""
  group = 16 // dtype.size  # Philox makes 128 bits from each value of its counter.
  first = tf.cast(index, tf.int64) * count
  counter += tf.stack([tf.cast(first // group, tf.uint64), tf.constant(0, tf.uint64)])
  if count % group == 0:
    return draw(count, key, counter)
  return tf.slice(draw(count + group, key, counter), [first % group], [count])


def _checked(name: str, shape: Sequence[int]) -> list[int]:
  if not len(shape):
    raise UsageError(f"random stream '{name}': draws for the examples of a batch; pass a shape "
                     "[n, ...], such as [1], not []")
  if any(size is None for size in shape):
    raise UsageError(f"random stream '{name}': drawn with the unknown shape {list(shape)}; batches "
                     "of a step have a known size, and a Keras layer that draws should define "
                     "compute_output_shape")
  return [int(size) for size in shape]


def _fresh_key(name: str) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the Philox key uint64 [1] and first counter uint64 [2] of a stream's next draw."""
  now = context.current()
  if context.in_inner_graph():
    raise UsageError(
        f"random stream '{name}': drawn inside a tf.function, tf.while_loop or tf.cond, which is "
        "traced once, so that numbers would repeat or depend on the branches; draw before it and "
        "pass the tensor in, or loop over a Python range")
  context.check_not_recomputed(f"random stream '{name}' would draw")
  draw = now.draws[name]
  now.draws[name] += 1
  digest = _digest(f"{draw}/{now.streams}{name}")
  seed = [int.from_bytes(digest[i:i + 8], "little", signed=True) for i in (0, 8)]
  # Like `tf.random.experimental.stateless_fold_in`. The part that is the same for all steps is
  # computed outside the step.
  with tf.init_scope():
    first = tf.random.stateless_uniform([], seed, None, None, tf.int64, alg="philox").numpy()
  folded = tf.stack([first, context.step_number()])
  # The same on every device: tf.random.stateless_* derive a key from a seed in this way.
  mixed = tf.raw_ops.StatelessRandomUniformFullIntV2(
      shape=[2], key=_SEED_KEY, counter=tf.bitcast(folded, tf.uint64), alg=_PHILOX,
      dtype=tf.uint64)
  return mixed[:1], mixed * tf.constant([0, 1], tf.uint64)
