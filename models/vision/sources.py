"""All image sources, which gin knows once this is imported; and data as a command line names it."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path

from models.vision.augmentation.random_view import Augmented, TwoViews
from models.vision.builtin.digits import Digits, MNISTDigits, StackedDigits
from models.vision.builtin.shapes import Shapes
from models.vision.files.image_arrays import ImageArrays
from models.vision.files.image_folder import ImageFolder, list_folder
from models.vision.files.image_zip import ImageZip, ZippedImages
from models.vision.files.libraries import TFDS, ArrowImages, HuggingFace, PreparedImages
from models.vision.images.encoded_images import EncodedImages
from models.vision.images.image_source import ImageSource, labels_of
from models.vision.images.write import png
from models.vision.shards import imagenet, sharded_images
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
"""The data sets of this project, which need no file, by name."""

FORMS = ("a folder or .zip of images, an .npz, a folder of .npy, shards, "
         f"{', '.join(NAMED)}, tfds:NAME, hf:NAME, or MODULE:CLASS of a source")
"""The forms of data that `open_encoded` opens, for the help of a command."""


def named(name: str) -> Callable[[], ImageSource] | None:
  """Finds what makes the source of a name, one of `NAMED` or `MODULE:CLASS`; None for any other.

  Raises:
    UsageError: there is no such module, or it has no such class.
  """
  module, _, kind = name.partition(":")
  if not kind.isidentifier() or module in _LIBRARIES or Path(name).exists():
    return NAMED.get(name)
  try:
    with gin.unlock_config():  # A command may have read its bindings by now.
      return getattr(importlib.import_module(module), kind)
  except (ImportError, AttributeError) as error:
    raise UsageError(f"{name}: {first_line(error)}; write MODULE:CLASS of an image "
                     "source") from error


_LIBRARIES: dict[str, Callable[[str, str], EncodedImages]] = {
    "tfds": PreparedImages, "hf": ArrowImages}


class EncodedExamples(EncodedImages):
  """The examples of an `ImageSource` as `EncodedImages`: PNG files, made as they are read."""

  def __init__(self, source: ImageSource, path: str, files: Sequence[str] = ()) -> None:
    """Draws the labels of all examples of a source, whose images the user calls `path`.

    They are in `files`, if there are any.
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


def open_encoded(path: str, labels: str | None = None, needs_classes: bool = True
                 ) -> EncodedImages:
  """The images of some data, as files or as PNG files.

  Args:
    path: a folder of images, a ZIP archive, an `.npz` file or a folder of `.npy` files, a folder or
      a pattern of shards, a name of `named`, or `tfds:NAME` or `hf:NAME` of TensorFlow Datasets
      or Hugging Face, with `@SPLIT` behind unless it is `train`.
    labels: the file of the labels of a folder of images, as `ImageFolder` takes it.
    needs_classes: whether images of a folder or archive that are in no class are refused or left
      out. Otherwise images are at any depth, and `labels.of_layout` says of which classes.

  Raises:
    UsageError: there are none.
  """
  place = Path(path).expanduser()
  if labels is not None:
    return list_folder(path, labels)
  library, _, name = path.partition(":")
  if library in _LIBRARIES:
    name, _, split = name.partition("@")
    return _LIBRARIES[library](name, split or "train")
  make = named(path)
  if make and not place.exists():
    return EncodedExamples(make(), path)
  if (place / sharded_images.INDEX).exists() or imagenet.shards_at(path):
    return sharded_images.ShardedImages(path)
  if arrays := _arrays_at(place):
    return EncodedExamples(ImageArrays(path), path, list(map(str, arrays)))
  if not place.exists():
    raise UsageError(f"{path}: no such folder or file; write {FORMS}."
                     f"{nearest(path, NAMED)}")
  if place.suffix.lower() == ".zip":
    return ZippedImages(path, needs_classes)
  if place.is_file():
    raise UsageError(f"{path}: is a file; write {FORMS}")
  return list_folder(path, labels, needs_classes)


def _arrays_at(place: Path) -> list[Path]:
  """An `.npz` file, or the files of a folder that has only `.npy` files."""
  if not place.is_dir():
    return [place] if place.suffix == ".npz" else []
  files = [file for file in sorted(place.iterdir()) if not file.name.startswith(".")]
  return files if all(file.suffix == ".npy" for file in files) else []
