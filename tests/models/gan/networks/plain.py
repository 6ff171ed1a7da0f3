"""Parts of networks in elementary operations, with exact singular values."""

import keras
import numpy as np
import tensorflow as tf


def normalized(layer: keras.layers.Layer) -> np.ndarray:
  """A kernel divided by its largest singular value; also sets the layer's singular vector."""
  matrix = layer.kernel.numpy().reshape(-1, layer.kernel.shape[-1])
  _, singular_values, vectors = np.linalg.svd(matrix)
  layer.u.assign(vectors[:1])
  return layer.kernel.numpy() / singular_values[0]


def upsampled(x: tf.Tensor) -> tf.Tensor:
  """Each pixel four times."""
  return tf.repeat(tf.repeat(x, 2, axis=1), 2, axis=2)


def pooled(x: tf.Tensor) -> tf.Tensor:
  """Means over blocks of 2x2 pixels."""
  return (x[:, ::2, ::2] + x[:, 1::2, ::2] + x[:, ::2, 1::2] + x[:, 1::2, 1::2]) / 4
