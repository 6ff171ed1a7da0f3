"""Networks that take noise away: the same shape comes out, from noisy examples and noise levels.

`network(x, level)` is called with examples `[n, *shape]` and a number [n] that grows with the noise
of each. `models.diffusion.edm.Denoiser` scales what goes in and what comes out.
"""

from collections.abc import Sequence

import gin
import keras
import numpy as np
import tensorflow as tf

from models.gan.networks.building import build_chain, call_chain
from replicator import UsageError
from replicator.errors import at_least_one

_FREQUENCIES = [2.0 ** (i / 2) for i in range(10)]


class NoiseLevel(keras.layers.Layer):
  """Cosines and sines of levels, which two layers mix: `[n] -> [n, units]`."""

  def __init__(self, units: int):
    super().__init__(autocast=False)
    self.mix = [keras.layers.Dense(units, "silu") for _ in range(2)]
    build_chain(self.mix, (None, 2 * len(_FREQUENCIES)))
    self.built = True

  def call(self, level: tf.Tensor) -> tf.Tensor:
    angles = level[:, tf.newaxis] * tf.constant([_FREQUENCIES], level.dtype)
    return call_chain(self.mix, tf.concat([tf.cos(angles), tf.sin(angles)], 1))


class LevelBlock(keras.layers.Layer):
  """A residual block that the level scales and shifts: `[n, h, w, c], [n, d] -> [n, h, w, k]`.

  Its last convolution begins at zero, so that the block begins as its shortcut.
  """

  def __init__(self, channels: int, filters: int, level_units: int):
    super().__init__()
    self.norms = [_norm(), _norm()]
    self.convs = [_conv(filters), _conv(filters, kernel_initializer="zeros")]
    self.modulation = keras.layers.Dense(2 * filters)
    self.shortcut = keras.layers.Conv2D(filters, 1)
    inside = build_chain([self.norms[0], self.convs[0]], (None, None, None, channels))
    build_chain([self.norms[1], self.convs[1]], inside)
    self.modulation.build((None, level_units))
    self.shortcut.build((None, None, None, channels))
    self.built = True

  def call(self, x: tf.Tensor, level: tf.Tensor) -> tf.Tensor:
    h = self.convs[0](tf.nn.silu(self.norms[0](x)))
    scale, shift = tf.split(self.modulation(level)[:, tf.newaxis, tf.newaxis], 2, -1)
    h = self.norms[1](h) * (1.0 + scale) + shift
    return self.shortcut(x) + self.convs[1](tf.nn.silu(h))


@gin.configurable(denylist=["shape"])
class DenoisingUNet(keras.Model):
  """A small U-Net for images, in the manner of Ho et al. 2020 (arXiv:2006.11239), appendix B.

  Residual blocks, with means of 2x2 pixels on the way down and repeated pixels on the way up, where
  each block also sees what a block of the same size on the way down made. There is no attention and
  no dropout.

  Args:
    shape: (height, width, channels) of the images.
    width: the number of channels at the full size, a multiple of 8; it doubles where the size is
      halved.
    halvings: how often the size is halved.
    blocks: residual blocks at each size, on each way.

  Raises:
    UsageError: a number is below 1, the width is no multiple of 8, or the images cannot be halved
      so often.
  """

  def __init__(self, shape: Sequence[int], width: int = 32, halvings: int = 1, blocks: int = 1):
    super().__init__(autocast=False)
    at_least_one("DenoisingUNet", width=width, halvings=halvings, blocks=blocks)
    if width % 8:
      raise UsageError(f"DenoisingUNet.width = {width}: must be a multiple of 8")
    if any(size % 2 ** halvings for size in shape[:2]):
      raise UsageError(f"DenoisingUNet.halvings = {halvings}: images of {shape[0]} x {shape[1]} "
                       "pixels cannot be halved so often; write fewer")
    widths = [width * 2 ** i for i in range(halvings + 1)]
    self.blocks = blocks
    self.level = NoiseLevel(4 * width)
    self.first = _conv(width)
    self.first.build((None, None, None, shape[-1]))
    self.down: list[LevelBlock] = []
    self.up: list[LevelBlock] = []
    channels, seen = width, []
    for filters in np.repeat(widths, blocks):
      self.down.append(LevelBlock(channels, int(filters), 4 * width))
      seen.append(channels := int(filters))
    for filters in np.repeat(widths[::-1], blocks):
      self.up.append(LevelBlock(channels + seen.pop(), int(filters), 4 * width))
      channels = int(filters)
    self.norm = _norm()
    self.last = _conv(shape[-1], kernel_initializer="zeros")
    build_chain([self.norm, self.last], (None, None, None, width))
    self.built = True

  def call(self, x: tf.Tensor, level: tf.Tensor) -> tf.Tensor:
    level, x, seen = self.level(level), self.first(x), []
    for i, block in enumerate(self.down):
      x = tf.nn.avg_pool2d(x, 2, 2, "VALID") if i and i % self.blocks == 0 else x
      x = block(x, level)
      seen.append(x)
    for i, block in enumerate(self.up):
      x = tf.repeat(tf.repeat(x, 2, 1), 2, 2) if i and i % self.blocks == 0 else x
      x = block(tf.concat([x, seen.pop()], -1), level)
    return tf.cast(self.last(tf.nn.silu(self.norm(x))), self.variable_dtype)


@gin.configurable(denylist=["shape"])
class DenoisingMLP(keras.Model):
  """Dense layers, for examples of a few numbers, such as points in the plane.

  Args:
    shape: that of an example.
    units: of each hidden layer.
    layers: how many hidden layers there are.

  Raises:
    UsageError: a number is below 1.
  """

  def __init__(self, shape: Sequence[int], units: int = 128, layers: int = 3):
    super().__init__(autocast=False)
    at_least_one("DenoisingMLP", units=units, layers=layers)
    self.level = NoiseLevel(units)
    self.hidden = [keras.layers.Dense(units, "silu") for _ in range(layers)]
    self.last = keras.layers.Dense(int(np.prod(shape)))
    build_chain([*self.hidden, self.last], (None, int(np.prod(shape)) + units))
    self.built = True

  def call(self, x: tf.Tensor, level: tf.Tensor) -> tf.Tensor:
    flat = tf.reshape(x, [-1, int(np.prod(x.shape[1:]))])
    h = call_chain([*self.hidden, self.last], tf.concat([flat, self.level(level)], 1))
    return tf.reshape(tf.cast(h, self.variable_dtype), [-1, *x.shape[1:]])


def _norm() -> keras.layers.GroupNormalization:
  return keras.layers.GroupNormalization(8)


def _conv(filters: int, **options: str) -> keras.layers.Conv2D:
  return keras.layers.Conv2D(filters, 3, padding="same", **options)
