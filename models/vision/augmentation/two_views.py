"""Two views of each image in one batch, as for networks that learn without labels."""

from collections.abc import Callable

import gin
import tensorflow as tf

from models.vision.augmentation.random_view import Augmented

_OTHER = 2 ** 62  # Far behind all positions of a run.


@gin.configurable
class TwoViews:
  """An `ImageSource` that also has `other`, a second view of each image that it augments.

    byol.data = @TwoViews
    TwoViews.data = @Augmented
    Augmented.data = @Digits

  Both views are drawn independently for the position of the example in the order of training, so
  that they are the same on any number of replicas and after a resume (Grill et al. 2020,
  arXiv:2006.07733).

  Args:
    data: makes the source that augments.
  """

  def __init__(self, data: Callable[[], Augmented] = gin.REQUIRED) -> None:
    self._source = data()
    self.size = self._source.size
    self.image_shape = self._source.image_shape
    self.num_classes = self._source.num_classes
    self.class_names = self._source.class_names
    self.batched = self._source.batched
    self.digest = self._source.digest

  def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
    """The example at int64 `index`, not augmented: both views are the image."""
    example = self._source.load(index)
    return {**example, "other": example["image"]}

  def augmented(self, index: tf.Tensor, seed: tf.Tensor) -> dict[str, tf.Tensor]:
    """The example: `{"image": uint8 [h, w, c], "other": uint8 [h, w, c], "label": int32 []}`.

    For indices [n], seeds are [n, 2], and all tensors [n, ...].
    """
    example = self._source.augmented(index, seed)
    other = self._source.augmented(index, seed + tf.constant([0, _OTHER], tf.int64))
    return {**example, "other": other["image"]}
