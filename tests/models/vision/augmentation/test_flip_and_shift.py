"""Shifts by whole pixels against NumPy, and what consistency regularization draws."""

from models.vision.augmentation.flip_and_shift import FlipAndShift, shift

import numpy as np
import pytest
import tensorflow as tf

IMAGES = np.random.default_rng(0).normal(size=[3, 8, 9, 2])
ROWS, COLUMNS = np.array([2, 0, -3]), np.array([-1, 0, 7])


@pytest.mark.parametrize("reflect", [False, True])
def test_images_move_down_and_to_the_right(reflect):
  found = shift(tf.constant(IMAGES), ROWS, COLUMNS, reflect)
  for image, row, column, moved in zip(IMAGES, ROWS, COLUMNS, found, strict=True):
    padded = np.pad(image, [(7, 7), (7, 7), (0, 0)], mode="reflect" if reflect else "constant")
    np.testing.assert_allclose(moved, padded[7 - row:15 - row, 7 - column:16 - column])


def test_flip_and_shift_keeps_to_its_range():
  # An image that says where each pixel comes from; 16 pixels move by up to 2, and 8 by up to 1.
  y, x = np.broadcast_to(np.mgrid[:8.0, :16.0], [200, 2, 8, 16]).transpose([1, 0, 2, 3])
  places = tf.constant(np.stack([x, y], -1))
  moved = FlipAndShift()(places).numpy()
  right, down = moved[:, 4, 8, 0], moved[:, 4, 8, 1]
  assert set(down) == {3.0, 4.0, 5.0}
  assert set(right) == {5.0, 6.0, 7.0, 8.0, 9.0, 10.0}  # Column 8 of the mirror image is 7.
  is_mirrored = moved[:, 4, 9, 0] < moved[:, 4, 8, 0]
  assert 0.4 < is_mirrored.mean() < 0.6
