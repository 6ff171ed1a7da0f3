"""A source of images in two parts: one to train on, and one to test what was learned."""

import numpy as np
import tensorflow as tf

from models.vision.images.image_source import ImageSource, hashed
from replicator import UsageError
from replicator.training.inputs import digest_of, is_batched, variant

_SEED = 3  # Fixed, so that a resumed run, and another run, hold out the same images.


class Subset:
  """An `ImageSource` of some examples of another."""

  def __init__(self, source: ImageSource, indices: np.ndarray) -> None:
    """Takes the examples of `source` at the integers `indices` [n], in that order."""
    self.size = len(indices)
    self.image_shape = source.image_shape
    self.num_classes = source.num_classes
    self.class_names = source.class_names
    self.batched = is_batched(source)
    self._source = source
    self._indices = np.asarray(indices, np.int64)

  def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
    """The example at int64 `index`, as the other source loads it."""
    return self._source.load(tf.gather(self._indices, index))

  def augmented(self, index: tf.Tensor, seed: tf.Tensor) -> dict[str, tf.Tensor]:
    """The example as it is trained on, if the other source augments; see `Augmented`."""
    return variant(self._source, tf.gather(self._indices, index), seed)

  def digest(self) -> str | None:
    """A digest of its examples, if the other source has one; see `training.inputs`."""
    of_all = digest_of(self._source)
    return of_all and hashed(np.array(of_all), self._indices)


def hold_out(source: ImageSource, share: float) -> tuple[Subset, Subset]:
  """Divides a source into what is trained on and what is held out, by a fixed permutation.

  Args:
    source: the images.
    share: the share that is held out, in (0, 1).

  Returns:
    The training part and the held-out part.

  Raises:
    UsageError: a part would have no image.
  """
  count = round(share * source.size)
  if not 0 < count < source.size:
    raise UsageError(f"held_out = {share}: holds out {count} of {source.size} images, and some "
                     "must be on both sides; write a share such as 0.2")
  order = np.random.default_rng(_SEED).permutation(source.size)
  return Subset(source, order[count:]), Subset(source, order[:count])
