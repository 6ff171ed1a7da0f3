"""Dropout whose masks do not depend on the number of replicas."""

from collections.abc import Sequence
from typing import Any

from replicator.errors import UsageError
from replicator.step import context, random

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable("replicator")
class Dropout(keras.layers.Layer):
  """Dropout with the same masks on any number of replicas (Srivastava et al. 2014).

  `[n, ...] -> [n, ...]`, floating-point. In training, each element is kept with probability
  `1 - rate` and divided by `1 - rate`, which preserves its expected value; otherwise it becomes
  zero. In inference, the layer returns its inputs.

  `keras.layers.Dropout` uses the same mask on every replica. Here the mask of example k of a step
  is the same for any number of replicas and micro-batches and in any precision, and a resumed run
  continues the masks exactly.

  Axis 0 holds the replica's examples. Call a network once per batch, not on two batches
  concatenated along axis 0: the order of their rows would depend on the number of replicas.

  All calls in a step draw from one stream in turn, each a different mask. The stream is not named
  after the layer, because Keras numbers layers as they are created: the masks of a network would
  depend on how many layers were created before it.

  Args:
    rate: the probability of dropping an element, in [0, 1).
    noise_shape: the shape of the mask: None for an axis of the inputs' size, 1 for an axis along
      which the mask is broadcast. `[None, 1, 1, None]` drops whole channels. Axis 0 must be None.
    stream: the stream of `replicator.random`. With a separate stream, a layer's masks do not depend
      on which other layers the step calls.

  Raises:
    UsageError: the rate or the noise shape is invalid, or the layer is called in a branch or loop
      of the step (see `replicator.random`).
  """

  def __init__(self, rate: float, noise_shape: Sequence[int | None] | None = None,
               stream: str = "dropout", **kwargs):
    super().__init__(**kwargs)
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
      raise UsageError(f"Dropout.rate = {rate!r}: must be a number in [0, 1), the probability of "
                       "dropping an element")
    if noise_shape is not None and (not noise_shape or noise_shape[0] is not None):
      raise UsageError(f"Dropout.noise_shape = {noise_shape}: each example has its own mask; write "
                       "None for axis 0, as in [None, 1, None]")
    self.rate = rate
    self.noise_shape = noise_shape
    self.stream = stream
    self.supports_masking = True

  def get_config(self) -> dict[str, Any]:
    return {**super().get_config(), "rate": self.rate, "noise_shape": self.noise_shape,
            "stream": self.stream}

  def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
    if self.rate:
      context.called(self, training)
    if not training or self.rate == 0:
      return inputs
    kept = random.bernoulli(self.stream, self._mask_shape(inputs.shape), 1 - self.rate)
    return tf.where(kept, inputs / (1 - self.rate), tf.zeros([], inputs.dtype))

  def _mask_shape(self, shape: tf.TensorShape) -> list[int]:
    if self.noise_shape is None:
      return list(shape)
    if len(self.noise_shape) != shape.rank or any(
        noise not in (None, 1, size) for noise, size in zip(self.noise_shape, shape, strict=True)):
      raise UsageError(f"Dropout.noise_shape = {self.noise_shape}: does not fit inputs of shape "
                       f"{shape}; write {shape.rank} sizes, each None, 1 or the input's size")
    return [size if noise is None else noise
            for noise, size in zip(self.noise_shape, shape, strict=True)]

  def compute_output_shape(self, input_shape):
    return input_shape
