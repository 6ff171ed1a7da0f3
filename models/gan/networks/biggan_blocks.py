"""Residual blocks and layers of the BigGAN networks (Brock et al. 2018, arXiv:1809.11096).

All initial weights are orthogonal, and initial biases are zero.
"""

import keras

from models.gan.networks.normalization import ConditionalBatchNorm
from models.gan.networks.resampling import ConvDownsample2D, UpsampleConv2D
from models.gan.networks.residual_blocks import DownBlock, UpBlock
from replicator import SpectralNorm


def up_block(filters: int, condition_dim: int) -> UpBlock:
  """The generator's block: `[n, h, w, i], [n, condition_dim] -> [n, 2 h, 2 w, filters]`."""
  norms = [ConditionalBatchNorm(condition_dim) for _ in range(2)]
  up = UpsampleConv2D(filters, kernel_initializer="orthogonal")
  return UpBlock(norms, [SpectralNorm(up), SpectralNorm(conv(filters, 3))],
                 SpectralNorm(conv(filters, 1)))


def down_block(filters: int, halve: bool, first: bool, spectral: bool = True) -> DownBlock:
  """The block of discriminator and encoder, with as many channels between its two convolutions."""
  def convs(inputs: int) -> list[keras.layers.Layer]:
    last = (ConvDownsample2D(filters, kernel_initializer="orthogonal") if halve
            else conv(filters, 3))
    return [conv(filters, 3), last]

  return DownBlock(filters, halve, first, spectral, convs, lambda: conv(filters, 1))


def conv(filters: int, size: int) -> keras.layers.Layer:
  """A convolution with zero padding, orthogonal at first."""
  return keras.layers.Conv2D(filters, size, padding="same", kernel_initializer="orthogonal")


def dense(units: int, inputs: int, dtype: str, use_bias: bool = True) -> SpectralNorm:
  """A spectrally normalized linear layer with its variables, orthogonal at first."""
  layer = SpectralNorm(keras.layers.Dense(units, use_bias=use_bias, dtype=dtype,
                                          kernel_initializer="orthogonal"))
  layer.build((None, inputs))
  return layer
