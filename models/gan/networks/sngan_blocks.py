"""The residual blocks of the SN-GAN networks.

Initial weights are Glorot-uniform, with gain sqrt(2) in the 3x3 convolutions and gain 1 in the
shortcuts. Initial biases are zero.
"""

import keras

from models.gan.networks.normalization import ClassBatchNorm
from models.gan.networks.resampling import ConvDownsample2D, UpsampleConv2D
from models.gan.networks.residual_blocks import DownBlock, UpBlock
from replicator import GlobalBatchNorm


def up_block(filters: int, num_classes: int) -> UpBlock:
  """The generator's block: `[n, h, w, i] -> [n, 2 h, 2 w, filters]`, and of labels with classes."""
  norms = [ClassBatchNorm(num_classes) if num_classes else GlobalBatchNorm() for _ in range(2)]
  up = UpsampleConv2D(filters, kernel_initializer=_glorot())
  return UpBlock(norms, [up, _conv3(filters)], keras.layers.Conv2D(filters, 1))


def down_block(filters: int, halve: bool, first: bool, spectral: bool) -> DownBlock:
  """The block of discriminator and encoder, which changes the channels in its last convolution.

  The block of an image changes them in its first one.
  """
  def convs(inputs: int) -> list[keras.layers.Layer]:
    return [_conv3(filters if first else inputs),
            ConvDownsample2D(filters, kernel_initializer=_glorot()) if halve else _conv3(filters)]

  return DownBlock(filters, halve, first, spectral, convs, lambda: keras.layers.Conv2D(filters, 1))


def _conv3(filters: int) -> keras.layers.Layer:
  return keras.layers.Conv2D(filters, 3, padding="same", kernel_initializer=_glorot())


def _glorot() -> keras.initializers.Initializer:
  # A new one in each call, because a Keras initializer repeats its numbers when it is reused.
  return keras.initializers.VarianceScaling(2, mode="fan_avg", distribution="uniform")
