"""The order of the examples in an epoch: a permutation with random access."""

import tensorflow as tf

# TensorFlow shuffles with a cipher of an even number of bits, at least 16. It uses two bits too few
# for these highest places, 2^16, 2^18, ..., and then gives the last place the first one's example.
_TOO_FEW_BITS = {2 ** bits for bits in range(16, 64, 2)}
_SHUFFLE = 498247692  # The prefix of the cipher key in TensorFlow's shuffle.


def shuffled(places: tf.Tensor, key: tf.Tensor, size: int) -> tf.Tensor:
  """Returns the examples at some places of an epoch, in a permutation of `[0, size)` for each key.

  Args:
    places: int64 [] or [n], in `[0, size)`.
    key: uint32 [2], or [n, 2] with a key for each place.
    size: the number of examples.
  """
  if size - 1 not in _TOO_FEW_BITS:
    return _shuffled(places, key, size - 1)
  # Shuffle one extra place. The place that gets the extra example takes that of the extra place.
  drawn, instead = (_shuffled(x, key, size) for x in (places, tf.fill(places.shape, _int64(size))))
  return tf.where(drawn == size, instead, drawn)


def _shuffled(places: tf.Tensor, key: tf.Tensor, highest: int) -> tf.Tensor:
  """Computes `tf.random.experimental.index_shuffle`, which itself rejects a key for each place."""
  seed = tf.pad(key, [[0, 0]] * (key.shape.rank - 1) + [[1, 0]], constant_values=_SHUFFLE)
  return tf.raw_ops.RandomIndexShuffle(index=places, seed=seed, max_index=_int64(highest), rounds=4)


def _int64(number: int) -> tf.Tensor:
  return tf.constant(number, tf.int64)
