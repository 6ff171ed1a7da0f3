"""Stacked digits: every channel is a digit of the number that is the label."""

import numpy as np
import pytest

from models.vision.builtin.digits import Digits, StackedDigits
from models.vision.images.image_source import read
from replicator.errors import UsageError


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


def test_too_few_images_are_refused_in_one_line():
  with pytest.raises(UsageError, match=r"^StackedDigits\.size = 999: write at least 1000"):
    StackedDigits(size=999)
