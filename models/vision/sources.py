"""All image sources, registered with gin on import; and opening of data named on a command line."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path

from models.vision.augmentation.random_view import Augmented, TwoViews
from models.vision.builtin.digits import Digits, MNISTDigits, StackedDigits
from models.vision.builtin.shapes import Shapes
from models.vision.files.image_arrays import ImageArrays
from models.vision.files.image_folder import ImageFolder, list_folder
from models.vision.files.image_zip import ImageZip, ZippedImages
from models.vision.files.libraries import TFDS, HuggingFace
from models.vision.images.encoded_images import DecodedImages, EncodedImages
from models.vision.images.image_source import ImageSource, labels_of
from models.vision.images.write import png
from models.vision.shards import other_shards, sharded_images
from models.vision.shards.sharded_images import TFRecords
from replicator import UsageError
from replicator.errors import chain_of, first_line, nearest

import gin
import tensorflow as tf

__all__ = ["TFDS", "Augmented", "Digits", "HuggingFace", "ImageArrays", "ImageFolder", "ImageZip",
           "MNISTDigits", "Shapes", "StackedDigits", "TFRecords", "TwoViews", "open_encoded"]

NAMED: dict[str, Callable[[], ImageSource]] = {
    "digits": Digits, "mnist_digits": MNISTDigits, "shapes": Shapes,
    "stacked_digits": StackedDigits}
"""The data sets of this project that need no files, by name."""

SETTINGS = {*__all__, "decode"}
"""The configurables that control how data is read."""

FORMS = ("a folder or .zip of images, an .npz, a folder of .npy, shards, "
         f"{', '.join(NAMED)}, tfds:NAME, hf:NAME (followed by @SPLIT,image=COLUMN,label=COLUMN "
         "as needed), or MODULE:CLASS of a source")
"""The forms of data that `open_encoded` opens, for the help of a command."""


def named(name: str) -> Callable[[], ImageSource] | None:
  """Returns the constructor of a named source, in `NAMED` or `MODULE:CLASS`; None for other names.

  Raises:
    UsageError: there is no such module, or it has no such class.
  """
  module, _, kind = name.partition(":")
  if not kind.isidentifier() or module in _LIBRARIES or Path(name).exists():
    return NAMED.get(name)
  try:
    with gin.unlock_config():  # A command may have parsed its bindings already.
      return getattr(importlib.import_module(module), kind)
  except (ImportError, AttributeError) as error:
    raise UsageError(f"{name}: {first_line(error)}; use MODULE:CLASS of an image "
                     "source") from error


_LIBRARIES: dict[str, Callable[..., DecodedImages]] = {"tfds": TFDS, "hf": HuggingFace}


class EncodedExamples(EncodedImages):
  """The examples of an `ImageSource` as `EncodedImages`: PNG files, encoded when read."""

  def __init__(self, source: ImageSource, path: str, files: Sequence[str] = ()) -> None:
    """Loads the labels of all examples of a source, which the user calls `path`.

    `files` contain the images, if any.
    """
    height, width, _ = source.image_shape
    self.image_shape = source.image_shape if height == width else None
    self.path = path
    self.class_names = tuple(source.class_names)
    self.labels = labels_of(source)
    self._files = files
    # By tf.data, as in training: TensorFlow would optimize a separate graph differently, and round
    # a few pixels to different levels.
    load = tf.autograph.experimental.do_not_convert(source.load)
    self._load = tf.function(
        lambda index: tf.data.Dataset.from_tensors(index).map(load).get_single_element(),
        [tf.TensorSpec([], tf.int64)], autograph=False)

  def name(self, index: int) -> str:
    """Returns the data and the number of the example."""
    return f"{self.path}: example {index}"

  def read(self, index: int) -> bytes:
    """Returns the example encoded as PNG."""
    try:
      return png(self._load(tf.constant(index, tf.int64))["image"].numpy())
    except tf.errors.OpError as error:
      if isinstance(cause := chain_of(error)[-1], UsageError):
        raise cause from error
      raise


def open_encoded(path: str, labels: str | None = None, needs_classes: bool = True,
                 skips: bool = False) -> EncodedImages:
  """Opens the images of some data, in their files or encoded as PNG.

  Further settings of the source can be bound in gin, such as `HuggingFace.label`.

  Args:
    path: a folder of images, a ZIP archive, an `.npz` file or a folder of `.npy` files, a folder or
      a pattern of shards, a name for `named`, or `tfds:NAME` or `hf:NAME` of TensorFlow Datasets
      or Hugging Face, see `_of_library`.
    labels: the file of labels of a folder of images, see `ImageFolder`.
    needs_classes: whether images of a folder or archive without a class are rejected or left out.
      Otherwise images may be at any depth, and `layout.find` determines their classes.
    skips: whether missing files are logged instead of rejected, as with `on_error = 'skip'`.

  Raises:
    UsageError: there are no images.
  """
  place = Path(path).expanduser()

  def opened(source: Callable[..., DecodedImages], **settings: str | None) -> EncodedImages:
    # Nothing is decoded, so the resolution does not matter.
    return source(path, resolution=1, memory_limit=0, on_error="skip" if skips else "raise",
                  **settings).encoded

  if labels is not None:
    return opened(ImageFolder, labels=labels)
  if is_of_library(path):
    library = path.partition(":")[0]
    path, columns = _of_library(path)
    return opened(_LIBRARIES[library], **columns)
  make = named(path)
  if make and not place.exists():
    return EncodedExamples(make(), path)
  if (place / sharded_images.INDEX).exists() or other_shards.shards_at(path):
    return opened(TFRecords)
  if arrays := _arrays_at(place):
    return EncodedExamples(ImageArrays(path), path, list(map(str, arrays)))
  if not place.exists():
    raise UsageError(f"{path}: no such folder or file; write {FORMS}."
                     f"{nearest(path, NAMED)}")
  is_archive = place.suffix.lower() == ".zip"
  if place.is_file() and not is_archive:
    raise UsageError(f"{path}: is a file; write {FORMS}")
  if needs_classes or (not is_archive and _has_list(place)):
    return opened(ImageZip if is_archive else ImageFolder)
  return ZippedImages(path, False) if is_archive else list_folder(path, needs_classes=False)


def _has_list(folder: Path) -> bool:
  """Returns whether a folder has the file of labels that is bound in gin."""
  try:
    labels = gin.query_parameter("ImageFolder.labels")
  except ValueError:  # It is not bound.
    return False
  return labels is not None and (folder / Path(labels).expanduser()).is_file()


def is_of_library(path: str) -> bool:
  """Returns whether data is from TensorFlow Datasets or Hugging Face, such as `hf:/data/pets`."""
  return path.partition(":")[0] in _LIBRARIES


def _of_library(path: str) -> tuple[str, dict[str, str | None]]:
  """Parses `hf:NAME@SPLIT,image=COLUMN,label=COLUMN`, where all but the name are optional.

  With an empty `label=`, images are of one class.
  """
  text, *columns = path.split(",")
  name, _, split = text.partition(":")[2].partition("@")
  settings: dict[str, str | None] = {"split": split} if split else {}
  for each in columns:
    column, is_given, value = each.partition("=")
    if column not in ("image", "label") or not is_given or (column == "image" and not value):
      raise UsageError(f"{path}: '{each}' is not a column; use image=COLUMN or label=COLUMN, or "
                       "label= if images have no classes")
    settings[column] = value or None
  return name, settings


def _arrays_at(place: Path) -> list[Path]:
  """Returns an `.npz` file, or the files of a folder with only `.npy` files."""
  if not place.is_dir():
    return [place] if place.suffix == ".npz" else []
  files = [file for file in sorted(place.iterdir()) if not file.name.startswith(".")]
  return files if all(file.suffix == ".npy" for file in files) else []
