"""The examples of any image source as encoded images."""

from collections.abc import Sequence

import tensorflow as tf

from models.vision.images.encoded_images import EncodedImages
from models.vision.images.image_source import ImageSource, labels_of
from models.vision.images.write import png
from replicator import UsageError
from replicator.errors import chain_of


class EncodedExamples(EncodedImages):
  """The examples of an `ImageSource` as `EncodedImages`: PNG files, made as they are read."""

  def __init__(self, source: ImageSource, path: str, files: Sequence[str] = ()) -> None:
    """Draws the labels of all examples.

    Args:
      source: the images.
      path: what the user calls them.
      files: the paths of the files that hold them, if there are any.
    """
    height, width, _ = source.image_shape
    self.image_shape = source.image_shape if height == width else None
    self.path = path
    self.class_names = tuple(source.class_names)
    self.labels = labels_of(source)
    self._files = files
    # By tf.data, as in a training: TensorFlow would optimize a graph of its own in another way,
    # and round a few pixels to another level.
    load = tf.autograph.experimental.do_not_convert(source.load)
    self._load = tf.function(
        lambda index: tf.data.Dataset.from_tensors(index).map(load).get_single_element(),
        [tf.TensorSpec([], tf.int64)], autograph=False)

  def name(self, index: int) -> str:
    """The data and the number of the example."""
    return f"{self.path}: example {index}"

  def read(self, index: int) -> bytes:
    """The content of a PNG file of the example."""
    try:
      return png(self._load(tf.constant(index, tf.int64))["image"].numpy())
    except tf.errors.OpError as error:
      if isinstance(cause := chain_of(error)[-1], UsageError):
        raise cause from error
      raise
