"""Dropout whose mask belongs to the example, so that replicas drop what one would."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from replicator import random
from replicator.errors import UsageError


class Dropout(keras.layers.Layer):
  """Sets elements to zero at random in training, and scales the others up (Srivastava et al. 2014).

  `[n, ...] -> [n, ...]`: each element is kept with probability `1 - rate` and divided by
  it, so that its mean stays. Inference passes the inputs on. `keras.layers.Dropout` has the
  same mask on every replica; here the mask of example k of a step is the same one on any
  number of replicas, in any micro-batches and in any precision, and a resumed run continues.

  Axis 0 is the replica's examples. Call a network once for each batch, not on two batches
  joined: the rows of such a pair on two replicas are not those on one.

  All calls in a step draw from one stream, one after the other, and each draws another mask.
  It is not named after the layer: Keras numbers its layers as they are made, so that a network
  built second in a process would have other masks.

  Args:
    rate: the probability of zero, in [0, 1).
    noise_shape: of the mask, with None where it is the input's and 1 where the mask is shared:
      `[None, 1, 1, None]` drops whole channels. Its axis 0 is None: examples share no mask.
    stream: of `replicator.random`. With one of its own, a layer's masks do not depend on which
      other layers the step calls.

  Raises:
    UsageError: the rate or the noise shape cannot be, or it is called in a branch or loop of
      the step (see `replicator.random`).
  """

  def __init__(self, rate: float, noise_shape: Sequence[int | None] | None = None,
               stream: str = "dropout", **kwargs):
    super().__init__(**kwargs)
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
      raise UsageError(f"Dropout.rate = {rate!r}: must be a number in [0, 1), the probability of "
                       "zero")
    if noise_shape is not None and (not noise_shape or noise_shape[0] is not None):
      raise UsageError(f"Dropout.noise_shape = {noise_shape}: each example has a mask of its own; "
                       "write None for axis 0, as in [None, 1, None]")
    self.rate = rate
    self.noise_shape = noise_shape
    self.stream = stream
    self.supports_masking = True

  def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
    if not training or self.rate == 0:
      return inputs
    kept = random.bernoulli(self.stream, self._mask_shape(inputs.shape), 1 - self.rate)
    return tf.where(kept, inputs / (1 - self.rate), tf.zeros([], inputs.dtype))

  def _mask_shape(self, shape: tf.TensorShape) -> list[int]:
    if self.noise_shape is None:
      return list(shape)
    if len(self.noise_shape) != shape.rank or any(
        noise not in (None, 1, size) for noise, size in zip(self.noise_shape, shape, strict=True)):
      raise UsageError(f"Dropout.noise_shape = {self.noise_shape}: does not fit inputs {shape}; "
                       f"write {shape.rank} sizes, each None, 1 or that of the inputs")
    return [size if noise is None else noise
            for noise, size in zip(self.noise_shape, shape, strict=True)]

  def compute_output_shape(self, input_shape):
    return input_shape
