"""Data sets of Hugging Face, whose Arrow files are mapped into memory."""

from pathlib import Path
from typing import Any

import gin
import numpy as np

from models.vision.images import labels as labels_lib
from models.vision.images.encoded_images import MEMORY_LIMIT, DecodedImages, EncodedImages
from replicator import UsageError
from replicator.errors import first_line


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
      on_error, memory_limit: as those of `ImageFolder`.

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
                       "-e '.[huggingface]'") from error
    self.path = str(path)
    self._split, self._image = split, image
    data = _opened(datasets, self.path, split)
    for parameter, column in (("image", image), ("label", label)):
      if column not in data.features:
        raise UsageError(f"HuggingFace.{parameter} = {column!r}: no such column in {path}; it has: "
                         f"{', '.join(data.features)}")
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
