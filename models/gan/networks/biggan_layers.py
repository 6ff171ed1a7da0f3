"""Layers of the BigGAN networks: initial weights are orthogonal, and initial biases are zero."""

import keras

from models.gan.networks import residual_blocks
from replicator import SpectralNorm


def orthogonal(size: int) -> str:
  """The initializer of kernels of any size."""
  del size
  return "orthogonal"


def conv(filters: int, size: int) -> SpectralNorm:
  """A spectrally normalized convolution with zero padding."""
  return SpectralNorm(residual_blocks.conv(filters, size, orthogonal))


def dense(units: int, inputs: int, dtype: str, use_bias: bool = True) -> SpectralNorm:
  """A spectrally normalized linear layer with its variables."""
  layer = SpectralNorm(keras.layers.Dense(units, use_bias=use_bias, dtype=dtype,
                                          kernel_initializer="orthogonal"))
  layer.build((None, inputs))
  return layer
