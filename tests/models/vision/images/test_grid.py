"""Grids of images, pixel by pixel."""

from models.vision.images.grid import image_grid, paired_grid, side_by_side

import numpy as np
import pytest
import tensorflow as tf

GAP = image_grid(np.zeros([1, 1, 1, 1], np.uint8), 1, scale=1)[0, 0]


def flat(levels, size=2, channels=3):
  """One image of each level: uint8 [n, size, size, channels]."""
  return np.broadcast_to(np.array(levels, np.uint8)[:, None, None, None],
                         [len(levels), size, size, channels])


def test_tiles_run_row_by_row_one_pixel_apart():
  grid = image_grid(flat([10, 20, 30]), columns=2, scale=1)
  assert grid.shape == (7, 7, 3) and grid.dtype == np.uint8
  assert (grid[1:3, 1:3] == 10).all() and (grid[1:3, 4:6] == 20).all()
  assert (grid[4:6, 1:3] == 30).all()
  for line in (0, 3, 6):
    assert (grid[line] == GAP).all() and (grid[:, line] == GAP).all()
  assert (grid[4:6, 4:6] == GAP).all()  # The place without an image.


def test_enlarging_repeats_pixels():
  image = np.array([[[[0], [50]], [[100], [150]]]], np.uint8)
  grid = image_grid(image, columns=1, scale=3)
  np.testing.assert_array_equal(grid[1:-1, 1:-1, 0], np.kron(image[0, :, :, 0], np.ones([3, 3])))


@pytest.mark.parametrize("size, side", [(20, 40), (100, 100)])
def test_tiny_images_are_enlarged_by_default(size, side):
  assert image_grid(flat([0], size), columns=1).shape == (side + 2, side + 2, 3)


@pytest.mark.parametrize("channels, dtype", [(1, "bfloat16"), (3, "float64")])
def test_floats_span_minus_one_to_one(channels, dtype):
  images = tf.cast(tf.reshape([-1.0, 0.0, 1.0, 5.0], [4, 1, 1, 1]), dtype)
  images = tf.tile(images, [1, 1, 1, channels])
  grid = image_grid(images, columns=4, scale=1)
  assert grid[1, 1::2].tolist() == [[0] * 3, [128] * 3, [255] * 3, [255] * 3]


def test_pairs_have_space_between_and_none_inside():
  grid = paired_grid(flat([10, 20, 30]), flat([11, 21, 31]), columns=2, scale=1)
  assert (grid[1:3, 1:3] == 10).all() and (grid[1:3, 3:5] == 11).all()
  assert (grid[1:3, 5:8] == GAP).all()
  assert (grid[1:3, 8:10] == 20).all() and (grid[1:3, 10:12] == 21).all()
  assert (grid[4:6, 1:3] == 30).all()
  assert grid.shape == (7, 13, 3)


def test_pictures_side_by_side_are_padded_with_white():
  left, right = np.zeros([4, 3, 3], np.uint8), np.full([6, 2, 3], 9, np.uint8)
  both = side_by_side(left, right, gap=5)
  assert both.shape == (6, 10, 3)
  assert (both[:4, :3] == 0).all() and (both[4:, :3] == 255).all()
  assert (both[:, 3:8] == 255).all() and (both[:, 8:] == 9).all()


@pytest.mark.parametrize("shape", [(0, 2, 2, 3), (2, 2, 3), (1, 2, 2, 4)])
def test_a_shape_that_is_no_image_batch_is_refused(shape):
  with pytest.raises(ValueError, match=r"A grid needs images \[n, h, w, 1 or 3\]"):
    image_grid(np.zeros(shape), columns=1)


def test_pairs_of_different_shapes_are_refused():
  with pytest.raises(ValueError, match="the same shape"):
    paired_grid(flat([1, 2]), flat([1]), columns=1)
