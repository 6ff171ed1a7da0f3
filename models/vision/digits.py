"""Handwritten digits that come with scikit-learn, without any download."""

import gin
import numpy as np

from models.vision.images import InMemoryImages


@gin.configurable
class Digits(InMemoryImages):
  """1,797 handwritten digits of 8x8 pixels, 10 classes: an `ImageSource` of [8, 8, 1].

  The test part of the UCI "Optical Recognition of Handwritten Digits" set (Alpaydin and
  Kaynak 1998), bundled with scikit-learn as `load_digits`. Its 17 ink levels 0..16 are
  scaled to 0..255.
  """

  def __init__(self) -> None:
    from sklearn.datasets import load_digits
    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)[..., np.newaxis]
    super().__init__(images, digits.target, tuple(str(name) for name in digits.target_names))
