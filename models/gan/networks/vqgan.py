"""The autoencoder of VQGAN (Esser et al. 2021, arXiv:2012.09841, table 7), without attention."""

from models.gan.networks.building import Residual, build_chain, call_chain, check_images
from models.gan.networks.normalization import LayerNorm
from models.gan.networks.resampling import ConvDownsample2D, UpsampleConv2D
from models.gan.networks.residual_blocks import plain_conv
from replicator import UsageError
from replicator.errors import at_least_one

import gin
import keras
import tensorflow as tf

_glorot = lambda size: "glorot_uniform"


@gin.configurable
class VQGANAutoencoder(keras.Model):
  """An encoder of images to smaller maps of vectors, and a decoder; a quantizer sits between them.

  Each residual block is x + conv(relu(norm(conv(relu(norm(x)))))) with 3x3 convolutions and layer
  normalization. The paper uses group normalization with 32 groups, and swish.

  Args:
    resolution: height and width of the images, in pixels.
    channels: 1 for gray, 3 for color images.
    dim: the number of channels of the vectors.
    base_channels: the channels at full size, which double whenever the size is halved; 128 in the
      paper, the `ch` of the authors' code.
    downsamplings: number of times that the encoder halves the size, and the decoder doubles it.
    blocks: residual blocks at each size; 2 in the paper.

  Attributes:
    last: the last layer of the decoder, a convolution.

  Raises:
    UsageError: a number is below 1, the resolution cannot be halved that often, or images have a
      different size.
  """

  def __init__(self, resolution: int, channels: int, dim: int, base_channels: int = 128,
               downsamplings: int = 4, blocks: int = 2):
    super().__init__(autocast=False)
    at_least_one("VQGANAutoencoder", base_channels=base_channels, downsamplings=downsamplings,
                 blocks=blocks)
    if resolution % 2 ** downsamplings:
      raise UsageError(f"VQGANAutoencoder.downsamplings = {downsamplings}: {resolution} pixels "
                       "cannot be halved that many times; use fewer")
    widths = [base_channels * 2 ** i for i in range(downsamplings + 1)]
    residual = lambda filters: [_block(filters) for _ in range(blocks)]
    self.image_shape = (resolution, resolution, channels)
    self.last = plain_conv(channels, 3, _glorot)
    self.encoder = [
        plain_conv(base_channels, 3, _glorot),
        *(layer for filters in widths[1:] for layer in (
            *residual(filters // 2), ConvDownsample2D(filters))),
        *residual(widths[-1]), LayerNorm(), keras.layers.ReLU(), plain_conv(dim, 1, _glorot)]
    self.decoder = [
        plain_conv(widths[-1], 3, _glorot), *residual(widths[-1]),
        *(layer for filters in widths[-2::-1] for layer in (
            UpsampleConv2D(filters), *residual(filters))),
        LayerNorm(), keras.layers.ReLU(), self.last]
    build_chain(self.decoder, build_chain(self.encoder, (None, *self.image_shape)))
    self.built = True

  def encode(self, images: tf.Tensor) -> tf.Tensor:
    """Encodes images: `[n, resolution, resolution, channels] -> [n, h, w, dim]`.

    Vectors are float32 (float64 under its policy).
    """
    check_images("VQGANAutoencoder", self.image_shape, images)
    with tf.name_scope("encoder"):
      return tf.cast(call_chain(self.encoder, images), self.variable_dtype)

  def decode(self, codes: tf.Tensor) -> tf.Tensor:
    """Decodes `[n, h, w, dim]` to images, roughly in [-1, 1] but not bounded."""
    with tf.name_scope("decoder"):
      return tf.cast(call_chain(self.decoder, codes), self.variable_dtype)


def _block(filters: int) -> Residual:
  return Residual([layer for _ in range(2) for layer in (
      LayerNorm(), keras.layers.ReLU(), plain_conv(filters, 3, _glorot))])
