"""A masked mean over the global batch, for example over the tokens that are not padding."""

from typing import Any

from replicator.errors import UsageError
from replicator.internals.tensorflow_internals import is_recorded
from replicator.step import context
from replicator.step.collectives import collectives

import keras
import tensorflow as tf


def mean(values: tf.Tensor, mask: Any = None) -> tf.Tensor:
  """Averages `values` where `mask` is true, over all replicas and micro-batches.

      loss = replicator.mean(errors, mask)  # [b, t], [b, t]

  If each replica divided by its own number of valid values, the mean of these means would depend on
  how the batch is split. Here every replica gets

      sum(mask * values) / sum(mask)

  with sums over the global batch. The gradients for values and mask follow the convention of
  the collectives. The mean takes one collective, and its gradient another. If no value is valid,
  the mean is 0, without a gradient. Values may be NaN where the mask is zero.

  In a micro-batch, every replica gets its share of the mean: `microbatch` and the optimizer average
  the shares over micro-batches and replicas, which gives the same mean. The sum of the mask over
  all micro-batches is computed first, from the whole batch. So in micro-batches the mask may depend
  on the batch and on random streams, but not on trained variables or on collectives.

  Args:
    values: `[...]`, any shape. Values that are not floating-point, such as bools, are cast to the
      dtype of the run. The replicas may have different numbers of values, as after
      `tf.boolean_mask`.
    mask: bools or nonnegative weights that broadcast to the values or have only their leading axes:
      `[b]` or `[b, t]` for values `[b, t, d]`. None averages all values.

  Returns:
    The mean, `[]`, in the dtype of the values.

  Raises:
    UsageError: the mask does not fit the values; or, in a micro-batch, it has a gradient or needs a
      collective.
  """
  values = tf.convert_to_tensor(values)
  dtype = values.dtype if values.dtype.is_floating else tf.as_dtype(keras.config.floatx())
  values = tf.cast(values, tf.float32 if dtype.size < 4 else dtype)
  weights = _weights(values, mask)
  weighted = tf.math.multiply_no_nan(values, weights)
  total = tf.reduce_sum(weighted)
  weight = tf.reduce_sum(tf.broadcast_to(weights, tf.shape(weighted)))
  part = context.current().microbatch
  if part is None:
    result = tf.math.divide_no_nan(*collectives.all_sum((total, weight)))
  elif part.weights is None:  # The pass over the whole batch, before its micro-batches.
    part.own_weights.append(weight)
    result = tf.math.divide_no_nan(total, weight)
  else:
    if is_recorded(weights):
      raise UsageError("mean: in micro-batches, the mask must not depend on trained variables; "
                       "pass tf.stop_gradient(mask)")
    shares = part.count * context.num_replicas()
    result = tf.math.divide_no_nan(shares * total, part.weights()[part.means])
    part.means += 1
  return tf.cast(result, dtype)


def _weights(values: tf.Tensor, mask: Any) -> tf.Tensor:
  """Casts the mask to the dtype of the values, and appends axes of size 1."""
  if mask is None:
    return tf.ones([1] * values.shape.rank, values.dtype)
  weights = tf.cast(mask, values.dtype)
  shape = weights.shape
  for _ in range(values.shape.rank - shape.rank):
    weights = weights[..., tf.newaxis]
  try:
    tf.broadcast_static_shape(values.shape, weights.shape)
  except ValueError as error:
    raise UsageError(f"mean: a mask of shape {shape} does not fit values of shape {values.shape}; "
                     "use an axis of size 1 where one weight applies to all") from error
  return weights
