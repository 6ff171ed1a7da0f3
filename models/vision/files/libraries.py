"""Data sets of TensorFlow Datasets and of Hugging Face, which both read an example at any index."""

from pathlib import Path
from typing import Any

from models.vision.images import labels as labels_lib
from models.vision.images.encoded_images import MEMORY_LIMIT, DecodedImages, EncodedImages
from models.vision.images.thread_map import map_in_threads
from replicator import UsageError
from replicator.errors import first_line

import gin
import numpy as np


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
      on_error: as that of `ImageFolder`.
      memory_limit: as that of `ImageFolder`.

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
      raise UsageError("TFDS needs TensorFlow Datasets: pip install 'replicator[tfds]'") from error
    self.path = name
    self._split, self._image = split, image
    try:
      builder = tfds.builder(name, data_dir=data_dir)
      self._data = builder.as_data_source(split, decoders={image: tfds.decode.SkipDecoding()})
    except Exception as error:  # Its builders raise errors of many types.
      raise UsageError(f"TFDS.name = {name!r}: cannot be opened ({first_line(error)[:200]}); "
                       f"prepare it with: tfds build {name} --file_format=array_record") from error
    features = builder.info.features
    _check_names("TFDS", "feature", name, sorted(features), image=image, label=label)
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


@gin.configurable
class HuggingFace(DecodedImages):
  """Images of a data set of Hugging Face: an `ImageSource` of [r, r, 3]."""

  def __init__(self, path: str, resolution: int, split: str = "train", image: str = "image",
               label: str = "label", on_error: str = "raise",
               memory_limit: int = MEMORY_LIMIT) -> None:
    """Opens the data set.

    Args:
      path: a folder that `save_to_disk` wrote; or what `datasets.load_dataset` takes, such as a
        name on the Hub, which it downloads once.
      resolution: height and width of the examples, in pixels.
      split: a part of it, such as `train`.
      image: the name of the column of images.
      label: that of their classes.
      on_error: as that of `ImageFolder`.
      memory_limit: as that of `ImageFolder`.

    Raises:
      UsageError: the package `datasets` is not installed, there is no such data set, split or
        column, or an image cannot be decoded.
    """
    super().__init__(ArrowImages(path, split, image, label), resolution, on_error, memory_limit)


class ArrowImages(EncodedImages):
  """The images of a data set, as `EncodedImages`; the arguments are those of `HuggingFace`."""

  def __init__(self, path: str, split: str = "train", image: str = "image", label: str = "label"
               ) -> None:
    """Opens the data set, and reads its labels; raises a UsageError as `HuggingFace` says."""
    try:
      import datasets  # It takes seconds.
    except ImportError as error:
      raise UsageError("HuggingFace needs the package datasets: pip install "
                       "'replicator[huggingface]'") from error
    self.path = str(path)
    self._split, self._image = split, image
    data = _opened(datasets, self.path, split)
    _check_names("HuggingFace", "column", path, list(data.features), image=image, label=label)
    if not isinstance(data.features[image], datasets.Image):
      raise UsageError(f"HuggingFace.image = {image!r}: is no column of images in {path}")
    setting = f"HuggingFace.label = {label!r}"
    labels = np.asarray(data.with_format("numpy")[label][:])
    if labels.dtype.kind not in "iu" or labels.ndim != 1 or not len(labels):
      raise UsageError(f"{setting}: is no column of numbers of classes in {path}")
    self.labels, self.class_names = labels_lib.from_numbers(
        labels, setting, getattr(data.features[label], "names", None))
    self._data = data.select_columns([image]).cast_column(image, datasets.Image(decode=False))
    self._files = [file["filename"] for file in data.cache_files]

  def name(self, index: int) -> str:
    """The data set, its split, and the number of the row."""
    return f"{self.path}: row {index} of {self._split}"

  def read(self, index: int) -> bytes:
    """The encoded image, which is in the row, or in a file that the row names."""
    found = self._data[index][self._image]
    return found["bytes"] or Path(found["path"]).read_bytes()


def _check_names(owner: str, kind: str, path: str, known: list[str], **names: str) -> None:
  """Raises a `UsageError` for the first name that the data set does not have."""
  for parameter, name in names.items():
    if name not in known:
      raise UsageError(f"{owner}.{parameter} = {name!r}: no such {kind} in {path}; it has: "
                       f"{', '.join(known)}")


def _opened(datasets: Any, path: str, split: str) -> Any:
  """The rows of a split."""
  place = Path(path).expanduser()
  try:
    if any((place / name).exists() for name in ("dataset_dict.json", "state.json")):
      data = datasets.load_from_disk(str(place))
      return data[split] if isinstance(data, datasets.DatasetDict) else data
    return datasets.load_dataset(path, split=split)
  except Exception as error:  # Its readers raise errors of many types.
    raise UsageError(f"HuggingFace.path = {path!r}: {split!r} cannot be opened "
                     f"({first_line(error)[:200]}); write a folder of save_to_disk, or a name on "
                     "the Hub") from error
