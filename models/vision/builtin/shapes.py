"""Colored shapes drawn on the fly: labeled images of any size, without files."""

import math

from models.vision.images.image_source import Labeled, to_uint8
from replicator import UsageError
from replicator.errors import at_least_one

import gin
import numpy as np
import tensorflow as tf

_SHAPES = ("circle", "square", "triangle", "cross")
_COLORS = ("red", "green", "blue")
_LINE = 0.12  # The width of an outline; the picture spans 2.
_SEED = 20190213  # Fixed, so that image `i` is the same in every run and on every machine.


@gin.configurable
class Shapes(Labeled):
  """Anti-aliased shapes in 4 forms x 3 colors on a dim background: an `ImageSource`.

  The index determines the position, size, angle, hue and brightness of the shape, and the color and
  gradient of the background. The class is `index % 12`, so classes are balanced.

  With `outlined`, only the outline of the shape is drawn, and the background shows inside.
  Otherwise the image is the same as the filled shape of the same index.
  """

  def __init__(self, resolution: int = 32, size: int = 50_000, outlined: bool = False) -> None:
    """Makes a source of `size` distinct images, uint8 [resolution, resolution, 3].

    Raises:
      UsageError: `resolution` is not in 8..128, or `size` is not positive.
    """
    if not 8 <= resolution <= 128:
      raise UsageError(f"Shapes.resolution = {resolution}: must be from 8 to 128 pixels.")
    at_least_one("Shapes", size=size)
    self.size = size
    self.outlined = outlined
    self.image_shape = (resolution, resolution, 3)
    self.class_names = tuple(f"{color} {shape}" for shape in _SHAPES for color in _COLORS)
    self.labels = np.arange(size, dtype=np.int32) % self.num_classes

  def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the example at int64 `index`: `{"image": uint8 [h, w, 3], "label": int32 []}`."""
    label = tf.cast(index % self.num_classes, tf.int32)
    jitter = tf.random.stateless_uniform([12], [index, _SEED], -1.0, 1.0, alg="philox")
    image = _draw(label, jitter, self.image_shape[0], self.outlined)
    return {"image": tf.ensure_shape(image, self.image_shape), "label": label}


def _draw(label: tf.Tensor, jitter: tf.Tensor, resolution: int, outlined: bool) -> tf.Tensor:
  """Draws an image uint8 [resolution, resolution, 3], given a label and 12 numbers in [-1, 1]."""
  right, down, size, turn, hue, saturation, value, *background, light = tf.unstack(jitter)
  step = 2.0 / resolution  # One pixel; the picture spans -1..1.
  line = (tf.range(resolution, dtype=tf.float32) + 0.5) * step - 1.0
  x, y = line[tf.newaxis, :], line[:, tf.newaxis]

  radius = 0.56 + 0.12 * size
  distance = _distance(label // len(_COLORS), x - 0.24 * right, y - 0.24 * down, radius,
                       angle=0.3 * turn)
  if outlined:  # The part up to _LINE inside.
    distance = tf.abs(distance + _LINE / 2) - _LINE / 2
  coverage = tf.clip_by_value(0.5 - distance / step, 0.0, 1.0)[..., tf.newaxis]

  hue = tf.cast(label % len(_COLORS), tf.float32) / len(_COLORS) + 0.035 * hue
  shape = _rgb(hue, 0.75 + 0.15 * saturation, 0.9 + 0.1 * value)
  lit = 1.0 - 0.16 * (y + light * x)[..., tf.newaxis]
  ground = _background(x, y, *background)
  # A soft halo sets the shape off from the background.
  halo = tf.exp(-9.0 * tf.maximum(distance, 0.0))[..., tf.newaxis]
  image = coverage * shape * lit + (1.0 - coverage) * (ground + 0.12 * halo * shape)
  return to_uint8(2.0 * image - 1.0)


def _distance(shape: tf.Tensor, x: tf.Tensor, y: tf.Tensor, radius: tf.Tensor,
              angle: tf.Tensor) -> tf.Tensor:
  """Computes the signed distance [h, w] to the outline of form `shape`, negative inside.

  Half-plane distances are combined by max and min. This is exact along edges; near corners the
  error is too small for anti-aliasing to show.
  """
  cosine, sine = tf.cos(angle), tf.sin(angle)
  x, y = cosine * x - sine * y, sine * x + cosine * y
  across, along = tf.abs(x), tf.abs(y)
  # Sizes that give comparable areas: 2.3, 2.3, 1.6 and 2.0 squared radii.
  circle = tf.sqrt(x * x + y * y) - 0.86 * radius
  square = tf.maximum(across, along) - 0.76 * radius
  slope = across * math.cos(math.pi / 6) - y * math.sin(math.pi / 6)
  triangle = tf.maximum(slope, y) - 0.56 * radius
  arm, reach = 0.31 * radius, 0.95 * radius
  cross = tf.minimum(tf.maximum(across - arm, along - reach),
                     tf.maximum(across - reach, along - arm))
  return tf.gather(tf.stack([circle, square, triangle, cross]), shape)


def _background(x: tf.Tensor, y: tf.Tensor, hue: tf.Tensor, saturation: tf.Tensor,
                value: tf.Tensor, slope: tf.Tensor) -> tf.Tensor:
  """Returns a dim color with a linear gradient of brightness: [h, w, 3] in [0, 1]."""
  direction = slope * math.pi
  gradient = 1.0 + 0.4 * (x * tf.cos(direction) + y * tf.sin(direction))
  return _rgb(0.5 + 0.5 * hue, 0.4 + 0.3 * saturation, 0.2 + 0.1 * value) * gradient[..., None]


def _rgb(hue: tf.Tensor, saturation: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
  """Returns a color [3] in [0, 1]; the hue is a fraction of the circle, of any sign."""
  return tf.image.hsv_to_rgb(tf.stack([hue % 1.0, saturation, value]))
