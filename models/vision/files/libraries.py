"""Data sets of TensorFlow Datasets and Hugging Face, with random access to examples."""

import functools
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models.vision.images import labels as labels_lib
from models.vision.images.encoded_images import MEMORY_LIMIT, DecodedImages, EncodedImages
from models.vision.images.thread_map import map_in_threads
from replicator import UsageError
from replicator.errors import first_line

import gin


@gin.configurable
class TFDS(DecodedImages):
  """Images of a TensorFlow Datasets data set: an `ImageSource` of [r, r, 3].

  It must be on this machine, in a format with random access, as written by `tfds build NAME
  --file_format=array_record`; nothing is downloaded. Its labels are read once at the start.
  """

  def __init__(self, name: str, resolution: int, split: str = "train",
               data_dir: str | None = None, image: str = "image", label: str | None = "label",
               on_error: str = "raise", memory_limit: int = MEMORY_LIMIT) -> None:
    """Opens the data set.

    Args:
      name: name of the data set, such as `cifar10` or `imagenet2012`, with a config and version if
        needed: `name/config:1.0.0`.
      resolution: height and width of the examples, in pixels.
      split: its split, such as `train` or `train[:80%]`.
      data_dir: the folder of data sets; by default `$TFDS_DATA_DIR` or `~/tensorflow_datasets`.
      image: the name of the image feature.
      label: the name of the class feature, of numbers, strings or booleans; for a nested feature,
        `attributes/Smiling`; None for images of one class.
      on_error: see `ImageFolder`.
      memory_limit: see `ImageFolder`.

    Raises:
      UsageError: TensorFlow Datasets is not installed, the data set is not on this machine or has
        no random access, it lacks a feature, or an image cannot be decoded.
    """
    super().__init__(PreparedImages(name, split, data_dir, image, label), resolution, on_error,
                     memory_limit)


class PreparedImages(EncodedImages):
  """The images of a data set, as `EncodedImages`; the arguments are those of `TFDS`."""

  def __init__(self, name: str, split: str = "train", data_dir: str | None = None,
               image: str = "image", label: str | None = "label") -> None:
    """Opens the data set, and reads its labels; raises the UsageErrors of `TFDS`."""
    try:
      import tensorflow_datasets as tfds  # Slow to import.
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
    _check_names("TFDS", "feature", name, sorted(features), image=image)
    self._files = list(map(str, builder.info.splits[split].filepaths))
    if label is None:
      self.labels, self.class_names = labels_lib.of_one(len(self._data))
      return
    place = label.split("/")
    feature = _class_feature(features, place, name, tfds.features.FeaturesDict)
    values = map_in_threads(lambda i: functools.reduce(operator.getitem, place, self._data[i]),
                            range(len(self._data)))
    self.labels, self.class_names = labels_lib.from_values(
        labels_lib.in_array(values), f"TFDS.label = {label!r} of {name}",
        getattr(feature, "names", None))

  def name(self, index: int) -> str:
    """Returns the data set, its split, and the number of the example."""
    return f"{self.path}: example {index} of {self._split}"

  def read(self, index: int) -> bytes:
    """Returns the encoded image."""
    return bytes(self._data[index][self._image])


def _class_feature(features: Any, place: Sequence[str], name: str, group: Any) -> Any:
  """Returns the feature at a path, such as `attributes`, `Smiling`, with one value per example.

  Raises a UsageError that lists the available features if there is none. A `group` contains
  features.
  """
  found, setting = features, f"TFDS.label = {'/'.join(place)!r}"
  for depth, part in enumerate(place):
    if not isinstance(found, group) or part not in list(found):
      raise UsageError(f"{setting}: no such feature in {name}; it has: "
                       f"{', '.join(_in(features, place[:depth]))}")
    found = found[part]
  if isinstance(found, group):
    inside = _in(features, place)
    raise UsageError(f"{setting}: has several features in {name}; use one of: "
                     f"{', '.join(inside)}")
  if found.shape != ():
    raise UsageError(f"{setting}: is not a class in {name}, but has the shape {found.shape}; use "
                     f"one of: {', '.join(_in(features, place[:-1]))}")
  return found


def _in(features: Any, place: Sequence[str]) -> list[str]:
  """Returns the full names of the features below a path."""
  inside = functools.reduce(operator.getitem, place, features)
  return ["/".join([*place, name]) for name in sorted(inside)]


@gin.configurable
class HuggingFace(DecodedImages):
  """Images of a Hugging Face data set: an `ImageSource` of [r, r, 3]."""

  def __init__(self, path: str, resolution: int, split: str = "train", image: str = "image",
               label: str | None = "label", on_error: str = "raise",
               memory_limit: int = MEMORY_LIMIT) -> None:
    """Opens the data set.

    Args:
      path: a folder written by `save_to_disk`; or an argument of `datasets.load_dataset`, such as a
        name on the Hub, which it downloads once.
      resolution: height and width of the examples, in pixels.
      split: its split, such as `train`.
      image: the name of the image column.
      label: the name of the class column, of numbers, strings or booleans; None for images of one
        class.
      on_error: see `ImageFolder`.
      memory_limit: see `ImageFolder`.

    Raises:
      UsageError: the package `datasets` is not installed, there is no such data set, split or
        column, or an image cannot be decoded.
    """
    super().__init__(ArrowImages(path, split, image, label), resolution, on_error, memory_limit)


class ArrowImages(EncodedImages):
  """The images of a data set, as `EncodedImages`; the arguments are those of `HuggingFace`."""

  def __init__(self, path: str, split: str = "train", image: str = "image",
               label: str | None = "label") -> None:
    """Opens the data set, and reads its labels; raises the UsageErrors of `HuggingFace`."""
    try:
      import datasets  # Slow to import.
    except ImportError as error:
      raise UsageError("HuggingFace needs the package datasets: pip install "
                       "'replicator[huggingface]'") from error
    self.path = str(path)
    self._split, self._image = split, image
    data = _opened(datasets, self.path, split)
    _check_names("HuggingFace", "column", path, list(data.features), image=image, label=label)
    if not isinstance(data.features[image], datasets.Image):
      raise UsageError(f"HuggingFace.image = {image!r}: is not an image column in {path}")
    self.labels, self.class_names = labels_lib.of_one(len(data)) if label is None else (
        labels_lib.from_values(labels_lib.in_array(data.select_columns([label])[label][:]),
                               f"HuggingFace.label = {label!r} of {path}",
                               getattr(data.features[label], "names", None)))
    self._data = data.select_columns([image]).cast_column(image, datasets.Image(decode=False))
    self._files = [file["filename"] for file in data.cache_files]

  def name(self, index: int) -> str:
    """Returns the data set, its split, and the number of the row."""
    return f"{self.path}: row {index} of {self._split}"

  def read(self, index: int) -> bytes:
    """Returns the encoded image, from the row or from the file that the row names."""
    found = self._data[index][self._image]
    return found["bytes"] or Path(found["path"]).read_bytes()


def _check_names(owner: str, kind: str, path: str, known: list[str], **names: str | None) -> None:
  """Raises a `UsageError` for the first name that the data set does not have."""
  for parameter, name in names.items():
    if name is not None and name not in known:
      raise UsageError(f"{owner}.{parameter} = {name!r}: no such {kind} in {path}; it has: "
                       f"{', '.join(known)}" + (
                           "; use None if images have no classes" * (parameter == "label")))


def _opened(datasets: Any, path: str, split: str) -> Any:
  """Returns the rows of a split."""
  place = Path(path).expanduser()
  try:
    if any((place / name).exists() for name in ("dataset_dict.json", "state.json")):
      data = datasets.load_from_disk(str(place))
      return data[split] if isinstance(data, datasets.DatasetDict) else data
    return datasets.load_dataset(path, split=split)
  except Exception as error:  # Its readers raise errors of many types.
    raise UsageError(f"HuggingFace.path = {path!r}: {split!r} cannot be opened "
                     f"({first_line(error)[:200]}); use a folder made by save_to_disk, or a name "
                     "on the Hub") from error
