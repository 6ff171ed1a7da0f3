"""The augmentation pipeline of StyleGAN2-ADA: Karras et al. 2020 (arXiv:2006.06676), appendix B.

Each augmentation is applied to an image with probability p times the strength of its group. The
paper finds that the generator learns undistorted images while p is below 0.8 (section 2.2). The
paper's image-space filtering is left out: neither its default nor R3GAN's includes it.
"""

import math
from typing import Any

import replicator
from models.gan.augmentation.resample import resample
from replicator import UsageError, random, replicated
from replicator.errors import at_least_one
from replicator.step.optimizers.schedules import Number

import gin
import keras
import numpy as np
import tensorflow as tf

# The luma axis of RGB, its projection, and its cross product, for rotations around it.
_LUMA = np.full([3, 3], 1 / 3)
_AROUND_LUMA = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]]) / math.sqrt(3)


@gin.configurable
class AdaptiveProbability(tf.Module):
  """A probability p that rises while the discriminator overfits to real images.

  The overfitting measure is r = mean sign D(x) of real images. After every `every` batches, p rises
  by (number of images in them) / `images` if r is above `target`, and falls by as much if r is
  below. It starts at 0 and stays in [0, 1]. All replicas hold the same p, and checkpoints save it.

  Args:
    target: the target value of r.
    images: number of images over which p can go from 0 to 1.
    every: batches between changes of p.

  Raises:
    UsageError: `images` or `every` is below 1.

  Reference: Karras et al. 2020 (arXiv:2006.06676), section 3.1 and equation 1.
  """

  def __init__(self, target: float = 0.6, images: int = 500_000, every: int = 4):
    super().__init__()
    at_least_one("AdaptiveProbability", images=images, every=every)
    self.target = target
    self.images = images
    self.every = every
    # p; then the sum and the number of signs since its last change.
    self.state = replicated.variable([0.0, 0.0, 0.0], keras.config.floatx(), "adaptive_probability")

  def __call__(self) -> tf.Tensor:
    """Returns p [], the same in all micro-batches of a batch."""
    return replicated.before(self.state)[0]

  def observe(self, real_scores: tf.Tensor) -> None:
    """Accumulates the signs of real images' scores [n], of a batch or a micro-batch."""
    p, signs, count = tf.unstack(tf.convert_to_tensor(self.state))
    size = real_scores.shape[0] * replicator.num_replicas()
    sign = tf.reduce_mean(tf.sign(tf.stop_gradient(real_scores)))
    sign = tf.where(tf.math.is_nan(sign), tf.zeros_like(sign), sign)
    sign = tf.cast(replicator.all_mean(sign), p.dtype)
    signs, count = signs + sign * size, count + size
    is_due = count >= self.every * size * replicated.num_microbatches()
    step = tf.sign(signs / count - self.target) * count / self.images
    changed = tf.stack([tf.clip_by_value(p + step, 0.0, 1.0), 0.0, 0.0])
    replicated.update([self.state], lambda copies, x: copies[0].assign(x),
                      tf.where(is_due, changed, tf.stack([p, signs, count])))


@gin.configurable
class ADA(tf.Module):
  """ADA's augmentation: `[n, h, w, c] -> [n, h, w, c]`, with 1 or 3 channels and h, w >= 8.

  It augments all images that the discriminator sees, real and generated, also in the generator's
  update. The defaults are the paper's "bgc". R3GAN (arXiv:2501.05441) uses a schedule for p,
  `color` = 0.5 and `cutout` = 1.

  Args:
    p: the probability of each augmentation: a number, a schedule, or an `AdaptiveProbability`, for
      which the step calls `observe` in each discriminator update.
    blits: the strength of flips, rotations by 90 degrees, and shifts by whole pixels.
    geometry: the strength of scaling, rotation, stretching, and fractional shifts.
    color: the strength of brightness, contrast, luma inversion, hue and saturation.
    noise: the strength of added noise.
    cutout: the strength of a square of zeros, half as wide as the image.

  Raises:
    UsageError: a strength is negative.
  """

  def __init__(self, p: Number | AdaptiveProbability = 0.2, blits: float = 1.0,
               geometry: float = 1.0, color: float = 1.0, noise: float = 0.0,
               cutout: float = 0.0):
    super().__init__()
    self.p = p
    self.blits, self.geometry, self.color = blits, geometry, color
    self.noise, self.cutout = noise, cutout
    for name in ("blits", "geometry", "color", "noise", "cutout"):
      if getattr(self, name) < 0:
        raise UsageError(f"ADA.{name} = {getattr(self, name)}: must not be negative; 0 turns it "
                         "off")

  def __call__(self, images: tf.Tensor) -> tf.Tensor:
    n, h, w, channels = images.shape
    if channels not in (1, 3) or min(h, w) < 8:
      raise UsageError(f"ADA: images of {h} x {w} x {channels}; it needs at least 8 x 8 pixels "
                       "and 1 or 3 channels")
    chance = _Chance(self.probability(), n)
    x = tf.cast(images, keras.config.floatx())
    if self.blits or self.geometry:
      x = resample(x, self._sources(chance, h, w))
    if self.color:
      x = _recolored(x, self._colors(chance))
    if self.noise:
      scale = chance.of(self.noise, tf.abs(chance.normal(0.1)), 0.0)
      x += scale[:, None, None, None] * random.normal("ada_noise", x.shape)
    if self.cutout:
      x = self._cut(chance, x)
    return tf.cast(x, images.dtype)

  def probability(self) -> float | tf.Tensor:
    """Returns p in this step, for logging: a number, or a tensor []."""
    return self.p() if isinstance(self.p, AdaptiveProbability) else replicator.scheduled(self.p)

  def observe(self, real_scores: tf.Tensor) -> None:
    """Updates an adaptive p, given the scores [n] of real images in a discriminator update."""
    if isinstance(self.p, AdaptiveProbability):
      self.p.observe(real_scores)

  def _sources(self, chance: "_Chance", h: int, w: int) -> tf.Tensor:
    """Returns the map from each output pixel to its source, `[n, 2, 3]`; see `resample`."""
    blits, geometry = self.blits, self.geometry
    mirror = chance.of(blits, tf.sign(chance.uniform(-1.0, 1.0)), 1.0)
    turn = chance.of(blits, tf.floor(chance.uniform(0.0, 4.0)), 0.0) * (math.pi / 2)
    moves = [chance.uniform(-1 / 8, 1 / 8), chance.uniform(-1 / 8, 1 / 8)]
    pixels = chance.either(blits, *(tf.round(move * size)
                                    for move, size in zip(moves, (w, h), strict=True)))
    scale = chance.of(geometry, 2.0 ** chance.normal(0.2), 1.0)
    # One rotation before and one after the stretch: at least one happens with probability p.
    once = 1 - tf.sqrt(1 - tf.clip_by_value(chance.p * geometry, 0.0, 1.0))
    angles = [chance.of_probability(once, chance.uniform(-math.pi, math.pi), 0.0) for _ in range(2)]
    stretch = chance.of(geometry, 2.0 ** chance.normal(0.2), 1.0)
    parts = chance.either(geometry, chance.normal(0.125) * w, chance.normal(0.125) * h)
    one = tf.ones_like(scale)
    result = _scale(mirror, one)
    for change in (_rotation(turn), _shift(*pixels), _scale(scale, scale), _rotation(angles[0]),
                   _scale(stretch, 1 / stretch), _rotation(angles[1]), _shift(*parts)):
      result = tf.matmul(result, change)
    return result[:, :2]

  def _colors(self, chance: "_Chance") -> tf.Tensor:
    """Returns the transform of a color (r, g, b, 1), `[n, 3, 4]`."""
    dtype = chance.p.dtype
    luma, around, one = tf.cast(_LUMA, dtype), tf.cast(_AROUND_LUMA, dtype), tf.eye(3, dtype=dtype)
    of = lambda value, neutral: chance.of(self.color, value, neutral)[:, None, None]
    brightness = of(chance.normal(0.2), 0.0)
    contrast = of(2.0 ** chance.normal(0.5), 1.0)
    inversion = of(tf.round(chance.uniform(0.0, 1.0)), 0.0)
    hue = of(chance.uniform(-math.pi, math.pi), 0.0)
    saturation = of(2.0 ** chance.normal(1.0), 1.0)
    change = tf.concat([one + tf.zeros_like(hue), brightness + tf.zeros([3, 1], dtype)], axis=2)
    for matrix in (contrast * one, one - 2 * luma * inversion,
                   luma + tf.cos(hue) * (one - luma) + tf.sin(hue) * around,
                   luma + saturation * (one - luma)):
      change = tf.matmul(matrix, change)
    return change

  def _cut(self, chance: "_Chance", images: tf.Tensor) -> tf.Tensor:
    width = chance.of(self.cutout, tf.constant(0.5, images.dtype), 0.0)[:, None]
    rows, columns = (
        tf.abs((tf.range(size, dtype=images.dtype) + 0.5) / size
               - chance.uniform(0.0, 1.0)[:, None]) < width / 2 for size in images.shape[1:3])
    is_hole = rows[:, :, None] & columns[:, None]
    return tf.where(is_hole[..., None], tf.zeros_like(images), images)


def logged(augment: Any) -> dict[str, tf.Tensor]:
  """Returns `augmentation`, the p of an `ADA`, for logging; nothing for other augmentations."""
  if not isinstance(augment, ADA):
    return {}
  return {"augmentation": tf.convert_to_tensor(augment.probability())}


class _Chance:
  """Random draws for each of n images, applied or not with probability p."""

  def __init__(self, p: float | tf.Tensor, n: int):
    self.p = tf.convert_to_tensor(p, keras.config.floatx())
    self.n = n

  def uniform(self, low: float, high: float) -> tf.Tensor:
    return random.uniform("ada", [self.n], low, high)

  def normal(self, stddev: float) -> tf.Tensor:
    return random.normal("ada", [self.n], stddev=stddev)

  def of_probability(self, p: tf.Tensor, value: tf.Tensor, neutral: float) -> tf.Tensor:
    """Returns the value [n] with probability p, else the neutral one."""
    return tf.where(self.uniform(0.0, 1.0) < p, value, tf.cast(neutral, value.dtype))

  def of(self, strength: float, value: tf.Tensor, neutral: float) -> tf.Tensor:
    """Returns the value [n] of a change of this strength."""
    return self.of_probability(strength * self.p, value, neutral)

  def either(self, strength: float, *values: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Returns all values of a change, or all zeros."""
    happens = self.of(strength, tf.ones_like(values[0]), 0.0)
    return tuple(happens * value for value in values)


def _map(*entries: tf.Tensor) -> tf.Tensor:
  """Makes affine maps `[n, 3, 3]` from their six entries [n]."""
  zero = tf.zeros_like(entries[0])
  return tf.reshape(tf.stack([*entries, zero, zero, zero + 1], axis=1), [-1, 3, 3])


def _scale(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  zero = tf.zeros_like(x)
  return _map(x, zero, zero, zero, y, zero)


def _shift(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  zero, one = tf.zeros_like(x), tf.ones_like(x)
  return _map(one, zero, x, zero, one, y)


def _rotation(angle: tf.Tensor) -> tf.Tensor:
  zero = tf.zeros_like(angle)
  return _map(tf.cos(angle), -tf.sin(angle), zero, tf.sin(angle), tf.cos(angle), zero)


def _recolored(images: tf.Tensor, change: tf.Tensor) -> tf.Tensor:
  """Applies color transforms `[n, 3, 4]`; a gray image counts as three equal channels."""
  if images.shape[3] == 1:
    change = tf.reduce_mean(change, 1, keepdims=True)
    factor = tf.reduce_sum(change[:, :, :3], 2, keepdims=True)
    return images * factor[:, tf.newaxis] + change[:, tf.newaxis, :, 3:]
  return (tf.einsum("nhwi,noi->nhwo", images, change[:, :, :3])
          + change[:, tf.newaxis, tf.newaxis, :, 3])
