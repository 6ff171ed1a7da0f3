"""The sliced Wasserstein distance: its pyramid, its projections, and what it sees."""

from models.metrics.distances import sliced_wasserstein
from models.metrics.distances.sliced_wasserstein import sliced_wasserstein_distance

import numpy as np
import pytest
import scipy.ndimage
import scipy.stats

RANDOM = np.random.default_rng(0)
IMAGES = scipy.ndimage.gaussian_filter(RANDOM.normal(size=[2, 80, 32, 32, 3]), (0, 0, 1, 1, 0))
REAL, OTHERS = np.clip(128 + 100 * IMAGES, 0, 255).astype(np.uint8)


def test_the_levels_add_to_the_image():
  images = REAL[:2, :, :, :].astype(np.float32)
  fine, coarse = (sliced_wasserstein._laplacian(images, level) for level in range(2))
  assert fine.shape == images.shape and coarse.shape == (2, 16, 16, 3)
  np.testing.assert_allclose(fine + sliced_wasserstein._doubled(coarse), images, atol=1e-3)


def test_a_projection_has_scipys_wasserstein_distance():
  first, second = RANDOM.normal(size=[2, 300, 5]).astype(np.float32)
  second = 2 * second + 1
  towards = np.random.default_rng(4).normal(size=[40, 5])
  towards /= np.linalg.norm(towards, axis=1, keepdims=True)
  expected = np.mean([scipy.stats.wasserstein_distance(first @ way, second @ way)
                      for way in towards])
  found = sliced_wasserstein._sliced(first, second, 40, np.random.default_rng(4))
  assert found == pytest.approx(expected, rel=1e-5)


def test_patches_are_those_of_the_image_and_normalized_by_channel():
  images = np.stack([np.full([5, 32, 32], 3.0), RANDOM.normal(size=[5, 32, 32])], axis=-1)
  found = sliced_wasserstein._descriptors(images, 1, 10, np.random.default_rng(0))
  channels = found.reshape(50, 2, 49)
  assert found.dtype == np.float32 and not np.any(channels[:, 0])  # Without contrast.
  assert channels[:, 1].mean() == pytest.approx(0, abs=1e-6)
  assert channels[:, 1].std() == pytest.approx(1, abs=1e-6)


def test_blurred_images_are_far_at_the_fine_scale():
  blurred = scipy.ndimage.gaussian_filter(OTHERS.astype(float), (0, 2, 2, 0)).astype(np.uint8)
  close = sliced_wasserstein_distance(REAL, OTHERS)
  far = sliced_wasserstein_distance(REAL, blurred)
  assert set(close.by_height) == {32, 16}
  assert close.mean == pytest.approx(np.mean(list(close.by_height.values())))
  assert far.by_height[32] > 2 * close.by_height[32]
