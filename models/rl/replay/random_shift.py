"""Random shifts of images, for agents that learn from pixels (Kostrikov et al. 2021)."""

import dataclasses

from replicator import UsageError, random
from replicator.errors import at_least_one

import gin
import tensorflow as tf


@gin.configurable
@dataclasses.dataclass(frozen=True)
class RandomShift:
  """Augmentation, inside a step, by random shifts of whole pixels: `[n, h, w, c]` -> the same.

  Border pixels are repeated outside. Reference: DrQ, arXiv:2004.13649, with one shift of each
  observation.

  Attributes:
    limit: the largest shift in each direction, in pixels.

  Raises:
    UsageError: it is called with observations that are not images.
  """

  limit: int = 4

  def __post_init__(self):
    at_least_one("RandomShift", limit=self.limit)

  def __call__(self, images: tf.Tensor) -> tf.Tensor:
    if len(images.shape) != 4:
      raise UsageError(f"RandomShift: observations of shape {images.shape[1:]} are not images; "
                       "set Environments.pixels, or leave Replay.augment out")
    for axis in (1, 2):
      size = images.shape[axis]
      moves = random.uniform("shift", [images.shape[0], 1], -self.limit, self.limit + 1, "int32")
      source = tf.clip_by_value(tf.range(size) + moves, 0, size - 1)
      images = tf.gather(images, source, axis=axis, batch_dims=1)
    return images
