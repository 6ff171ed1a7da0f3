"""Data as a command line names it: a folder, a file, shards, or a name."""

from collections.abc import Callable
from pathlib import Path

from models.vision.builtin.digits import Digits
from models.vision.builtin.shapes import Shapes
from models.vision.builtin.stacked_digits import StackedDigits
from models.vision.files.hugging_face import ArrowImages
from models.vision.files.image_arrays import ImageArrays
from models.vision.files.image_folder import list_folder
from models.vision.files.image_zip import ZippedImages
from models.vision.files.tfds import PreparedImages
from models.vision.images.decode import Shape
from models.vision.images.encoded_examples import EncodedExamples
from models.vision.images.encoded_images import EncodedImages
from models.vision.images.image_source import ImageSource
from models.vision.shards import imagenet, sharded_images

NAMED: dict[str, Callable[[], ImageSource]] = {
    "digits": Digits, "shapes": Shapes, "stacked_digits": StackedDigits}
"""The data sets of this project, which need no file, by name."""

FORMS = ("a folder or .zip of images, an .npz, a folder of .npy, shards, "
         f"{', '.join(NAMED)}, tfds:NAME or hf:NAME")
"""What `open_encoded` opens, for the help of a command."""

_LIBRARIES: dict[str, Callable[[str, str], EncodedImages]] = {
    "tfds": PreparedImages, "hf": ArrowImages}


def open_encoded(path: str, labels: str | None = None) -> tuple[EncodedImages, Shape | None]:
  """The images of some data, as files or as PNG files; and their shape, if they have one.

  Args:
    path: a folder of images, a ZIP archive, an `.npz` file or a folder of `.npy` files, a folder or
      a pattern of shards, one of `NAMED`, or `tfds:NAME` or `hf:NAME` of TensorFlow Datasets or
      Hugging Face, with `@SPLIT` behind unless it is `train`.
    labels: the file of the labels of a folder of images, as `ImageFolder` takes it.

  Raises:
    UsageError: there are none.
  """
  place = Path(path).expanduser()
  if labels is not None:
    return list_folder(path, labels), None
  library, _, name = path.partition(":")
  if library in _LIBRARIES:
    name, _, split = name.partition("@")
    return _LIBRARIES[library](name, split or "train"), None
  if path in NAMED and not place.exists():
    return _drawn(NAMED[path](), path, [])
  if (place / sharded_images.INDEX).exists() or imagenet.shards_at(path):
    sharded = sharded_images.ShardedImages(path)
    return sharded, sharded.image_shape
  if arrays := _arrays_at(place):
    return _drawn(ImageArrays(path), path, list(map(str, arrays)))
  if place.suffix.lower() == ".zip":
    return ZippedImages(path), None
  return list_folder(path, labels), None


def _arrays_at(place: Path) -> list[Path]:
  """An `.npz` file, or the files of a folder that has only `.npy` files."""
  if not place.is_dir():
    return [place] if place.suffix == ".npz" else []
  files = [file for file in sorted(place.iterdir()) if not file.name.startswith(".")]
  return files if all(file.suffix == ".npy" for file in files) else []


def _drawn(source: ImageSource, path: str, files: list[str]) -> tuple[EncodedImages, Shape | None]:
  height, width, _ = source.image_shape
  return (EncodedExamples(source, path, files), source.image_shape if height == width else None)
