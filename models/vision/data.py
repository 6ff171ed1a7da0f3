"""Data as a command line names it: a folder, a ZIP archive, shards, or a name of this project."""

from collections.abc import Callable
from pathlib import Path

from models.vision import shards
from models.vision.decoding import EncodedImages
from models.vision.digits import Digits
from models.vision.folder import list_folder
from models.vision.image_zip import ZippedImages
from models.vision.images import ImageSource
from models.vision.pictures import Shape
from models.vision.shapes import Shapes
from models.vision.stacked_digits import StackedDigits

NAMED: dict[str, Callable[[], ImageSource]] = {
    "digits": Digits, "shapes": Shapes, "stacked_digits": StackedDigits}
"""The data sets of this project, which need no file, by name."""


def open_encoded(path: str) -> tuple[EncodedImages, Shape | None]:
  """The images of a folder, a ZIP archive or a folder of shards; and their shape, if they have one.

  Raises:
    UsageError: there are none.
  """
  if (Path(path).expanduser() / shards.INDEX).exists():
    sharded = shards.ShardedImages(path)
    return sharded, sharded.image_shape
  if Path(path).suffix.lower() == ".zip":
    return ZippedImages(path), None
  return list_folder(path), None
