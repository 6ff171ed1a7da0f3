"""The networks of CycleGAN: a generator that translates images, and a patch discriminator.

Zhu et al. 2017 (arXiv:1703.10593), appendix 7.2. Both use instance normalization, which treats
each image independently, and initial weights with standard deviation 0.02.
"""

from models.gan.networks.building import (
  Residual,
  SameShape,
  build_chain,
  call_chain,
  check_images,
  small_normal,
)
from replicator import UsageError
from replicator.errors import at_least_one

import gin
import keras
import tensorflow as tf


@gin.configurable
class CycleGANGenerator(keras.Model):
  """CycleGAN's generator: `[n, resolution, resolution, channels]` -> the same, in [-1, 1].

  In the paper's notation, with k base channels and two downsamplings: c7s1-k, d2k, d4k, R4k for
  each block, u2k, uk, and a 7x7 convolution with tanh. Convolutions that keep the size have
  reflection padding.

  Args:
    resolution: height and width of the images, in pixels.
    channels: 1 for gray, 3 for color images.
    base_channels: k, the channels at the full size; 64 in the paper, `ngf` in the authors' code.
    blocks: number of residual blocks; 6 in the paper for 128 pixels, 9 for 256.
    downsamplings: number of halvings of the size before the blocks, and of doublings after them.

  Raises:
    UsageError: a number is below 1, the downsamplings leave less than a 2x2 map, or images have a
      different size.
  """

  def __init__(self, resolution: int, channels: int = 3, base_channels: int = 64, blocks: int = 9,
               downsamplings: int = 2):
    super().__init__(autocast=False)
    at_least_one("CycleGANGenerator", base_channels=base_channels, blocks=blocks,
                 downsamplings=downsamplings)
    _check_downsamplings("CycleGANGenerator.downsamplings", downsamplings, resolution)
    widths = [base_channels * 2 ** i for i in range(downsamplings + 1)]
    self.image_shape = (resolution, resolution, channels)
    self.trunk = [
        _Reflection(3), *_normalized(_conv(base_channels, 7, padding="valid")),
        *(layer for filters in widths[1:] for layer in _normalized(_conv(filters, 3, 2))),
        *(_residual(widths[-1]) for _ in range(blocks)),
        *(layer for filters in widths[-2::-1] for layer in _normalized(_up(filters))),
        _Reflection(3), _conv(channels, 7, padding="valid", use_bias=True)]
    build_chain(self.trunk, (None, *self.image_shape))
    self.built = True

  def call(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
    """Translates images, float32 (float64 under its policy)."""
    check_images("CycleGANGenerator", self.image_shape, images)
    return tf.tanh(tf.cast(call_chain(self.trunk, images), self.variable_dtype))


@gin.configurable
class PatchDiscriminator(keras.Model):
  """A discriminator of overlapping patches: `[n, resolution, resolution, channels] -> [n, h, w]`.

  Of its 4x4 convolutions, `layers` halve the size, with k to at most 8k channels, and two do not.
  3 layers have a receptive field of 70 pixels, 2 layers 34, and 1 layer 16 (Isola et
  al. 2016, arXiv:1611.07004, appendix 6.1.2).

  Args:
    resolution: height and width of the images, in pixels.
    channels: 1 for gray, 3 for color images.
    base_channels: k, the channels of the first convolution; 64 in the paper, `ndf` in the authors'
      code.
    layers: number of convolutions that halve the size.

  Raises:
    UsageError: a number is below 1, the layers leave less than a 2x2 map, or images have a
      different size.
  """

  def __init__(self, resolution: int, channels: int = 3, base_channels: int = 64, layers: int = 3):
    super().__init__(autocast=False)
    at_least_one("PatchDiscriminator", base_channels=base_channels, layers=layers)
    _check_downsamplings("PatchDiscriminator.layers", layers, resolution)
    self.image_shape = (resolution, resolution, channels)
    widths = [base_channels * min(2 ** i, 8) for i in range(layers + 1)]
    self.trunk = [_conv(base_channels, 4, 2, use_bias=True), keras.layers.LeakyReLU(0.2)]
    for filters in widths[1:-1]:
      self.trunk += _normalized(_conv(filters, 4, 2), keras.layers.LeakyReLU(0.2))
    self.trunk += _normalized(_conv(widths[-1], 4), keras.layers.LeakyReLU(0.2))
    self.trunk.append(_conv(1, 4, use_bias=True))
    build_chain(self.trunk, (None, *self.image_shape))
    self.built = True

  def call(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
    """Scores patches, float32 (float64 under its policy)."""
    check_images("PatchDiscriminator", self.image_shape, images)
    return tf.cast(call_chain(self.trunk, images)[..., 0], self.variable_dtype)


class _Reflection(keras.layers.Layer):
  """Reflection padding: `[n, h, w, c] -> [n, h + 2 size, w + 2 size, c]`."""

  def __init__(self, size: int):
    super().__init__()
    self.paddings = [[0, 0], [size, size], [size, size], [0, 0]]

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    return tf.pad(inputs, self.paddings, "REFLECT")

  def compute_output_shape(self, input_shape: tuple) -> tuple:
    return tuple(size and size + sum(pad)
                 for size, pad in zip(input_shape, self.paddings, strict=True))


class _InstanceNorm(SameShape):
  """Instance normalization (Ulyanov et al. 2016, arXiv:1607.08022).

  It is faster than `keras.layers.GroupNormalization(-1)`, which reshapes.
  """

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    x = tf.cast(inputs, self.variable_dtype)
    x -= tf.reduce_mean(x, [1, 2], keepdims=True)
    variance = tf.reduce_mean(tf.square(x), [1, 2], keepdims=True)
    return tf.cast(x * tf.math.rsqrt(variance + 1e-5), self.compute_dtype)


def _residual(filters: int) -> Residual:
  """Makes x + norm(conv(relu(norm(conv(x))))), with 3x3 convolutions."""
  # Without the last ReLU.
  return Residual([layer for _ in range(2) for layer in (
      _Reflection(1), *_normalized(_conv(filters, 3, padding="valid")))][:-1])


def _check_downsamplings(name: str, number: int, resolution: int) -> None:
  if resolution % 2 ** number or resolution < 2 ** (number + 1):
    raise UsageError(f"{name} = {number!r}: {resolution} pixels cannot be halved that many times "
                     "and leave a map of 2x2 or more; use fewer")


def _normalized(convolution: keras.layers.Layer, activation: keras.layers.Layer | None = None
                ) -> list[keras.layers.Layer]:
  """Returns a convolution, instance normalization and an activation, by default ReLU."""
  return [convolution, _InstanceNorm(), activation or keras.layers.ReLU()]


def _conv(filters: int, size: int, strides: int = 1, padding: str = "same", use_bias: bool = False
          ) -> keras.layers.Conv2D:
  return keras.layers.Conv2D(filters, size, strides, padding, use_bias=use_bias,
                             kernel_initializer=small_normal())


def _up(filters: int) -> keras.layers.Conv2DTranspose:
  return keras.layers.Conv2DTranspose(filters, 3, 2, "same", use_bias=False,
                                      kernel_initializer=small_normal())
