"""The digits source against scikit-learn's description."""

import numpy as np
from sklearn.datasets import load_digits

from models.vision.builtin.digits import Digits
from models.vision.images.image_source import read


def test_digits_are_those_of_scikit_learn():
  source = Digits()
  assert source.size == 1797
  assert source.image_shape == (8, 8, 1)
  assert source.class_names == tuple("0123456789")
  images, labels = read(source, np.arange(source.size))
  theirs = load_digits()
  np.testing.assert_array_equal(labels, theirs.target)
  np.testing.assert_array_equal(images[..., 0], np.round(theirs.images * 255 / 16))
  # Digits of each class, from the data set's description in scikit-learn.
  assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
  # The first row of the first digit is 0 0 5 13 9 1 0 0 of 16 levels.
  assert images[0, 0, :, 0].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]
  assert images.min() == 0 and images.max() == 255
