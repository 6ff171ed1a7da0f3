"""Handwritten digits that come with scikit-learn, without any download."""

import importlib.util
import pathlib

import gin
import numpy as np

from models.vision.images.image_source import InMemoryImages


@gin.configurable
class Digits(InMemoryImages):
  """1,797 handwritten digits of 8x8 pixels, 10 classes: an `ImageSource` of [8, 8, 1].

  The test part of the UCI "Optical Recognition of Handwritten Digits" set (Alpaydin and
  Kaynak 1998), bundled with scikit-learn as `load_digits`. Its 17 ink levels 0..16 are
  scaled to 0..255.
  """

  def __init__(self) -> None:
    super().__init__(*digit_images(), tuple("0123456789"))


def digit_images() -> tuple[np.ndarray, np.ndarray]:
  """The images of `Digits`, uint8 [1797, 8, 8, 1], and the digit of each, int32 [1797]."""
  # Only the file is read: to import scikit-learn takes a second.
  package = importlib.util.find_spec("sklearn")
  if package is None or package.origin is None:
    raise ImportError("scikit-learn is not installed: pip install scikit-learn")
  file = pathlib.Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
  table = np.loadtxt(file, np.int32, delimiter=",")  # 64 ink levels and the digit, [1797, 65].
  images = np.round(table[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
  return images, table[:, -1]
