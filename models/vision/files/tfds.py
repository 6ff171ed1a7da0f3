"""Data sets of TensorFlow Datasets, read through its sources with random access."""

import gin
import numpy as np

from models.vision.images import labels as labels_lib
from models.vision.images.encoded_images import MEMORY_LIMIT, DecodedImages, EncodedImages
from models.vision.images.thread_map import map_in_threads
from replicator import UsageError
from replicator.errors import first_line


@gin.configurable
class TFDS(DecodedImages):
  """Images of a data set of TensorFlow Datasets: an `ImageSource` of [r, r, 3].

  It must be on this machine, in a format with random access, such as `tfds build NAME
  --file_format=array_record` writes; nothing is downloaded. Its labels are read once at the start.
  """

  def __init__(self, name: str, resolution: int, split: str = "train",
               data_dir: str | None = None, image: str = "image", label: str = "label",
               on_error: str = "raise", memory_limit: int = MEMORY_LIMIT) -> None:
    """Opens the data set.

    Args:
      name: of the data set, such as `cifar10` or `imagenet2012`, with a config and version if need
        be: `name/config:1.0.0`.
      resolution: height and width of the examples, in pixels.
      split: a part of it, such as `train` or `train[:80%]`.
      data_dir: where data sets are; by default `$TFDS_DATA_DIR` or `~/tensorflow_datasets`.
      image: the name of the feature that is the image.
      label: that of its class.
      on_error, memory_limit: as those of `ImageFolder`.

    Raises:
      UsageError: TensorFlow Datasets is not installed, the data set is not on this machine or has
        no random access, it has no such feature, or an image cannot be decoded.
    """
    super().__init__(PreparedImages(name, split, data_dir, image, label), resolution, on_error,
                     memory_limit)


class PreparedImages(EncodedImages):
  """The images of a data set, as `EncodedImages`; the arguments are those of `TFDS`."""

  def __init__(self, name: str, split: str = "train", data_dir: str | None = None,
               image: str = "image", label: str = "label") -> None:
    """Opens the data set, and reads its labels; raises a UsageError as `TFDS` says."""
    try:
      import tensorflow_datasets as tfds  # It takes seconds.
    except ImportError as error:
      raise UsageError("TFDS needs TensorFlow Datasets: pip install -e '.[tfds]'") from error
    self.path = name
    self._split, self._image = split, image
    try:
      builder = tfds.builder(name, data_dir=data_dir)
      self._data = builder.as_data_source(split, decoders={image: tfds.decode.SkipDecoding()})
    except Exception as error:  # Its builders raise errors of many types.
      raise UsageError(f"TFDS.name = {name!r}: cannot be opened ({first_line(error)[:200]}); "
                       f"prepare it with: tfds build {name} --file_format=array_record") from error
    features = builder.info.features
    for parameter, feature in (("image", image), ("label", label)):
      if feature not in features:
        raise UsageError(f"TFDS.{parameter} = {feature!r}: no such feature in {name}; it has: "
                         f"{', '.join(sorted(features))}")
    self._files = list(map(str, builder.info.splits[split].filepaths))
    labels = np.array(list(map_in_threads(lambda i: self._data[i][label],
                                          range(len(self._data)))))
    self.labels, self.class_names = labels_lib.from_numbers(
        labels, f"TFDS.label = {label!r}", getattr(features[label], "names", None))

  def name(self, index: int) -> str:
    """The data set, its split, and the number of the example."""
    return f"{self.path}: example {index} of {self._split}"

  def read(self, index: int) -> bytes:
    """The encoded image."""
    return bytes(self._data[index][self._image])
