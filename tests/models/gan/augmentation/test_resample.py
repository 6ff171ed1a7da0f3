"""Resampling of images: what must stay as it is, and where pixels go."""

from models.gan.augmentation.resample import SYM6, resample

import numpy as np
import pytest
import tensorflow as tf

IDENTITY = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
NOISE = np.random.default_rng(0).normal(size=[2, 10, 8, 3])
ROWS, COLUMNS = np.mgrid[:16, :16] - 7.5
SMOOTH = np.exp(-((ROWS - 3) ** 2 + (COLUMNS - 1) ** 2) / 12)[None, :, :, None]


def moved(images: np.ndarray, sources) -> np.ndarray:
  sources = np.broadcast_to(sources, [len(images), 2, 3])
  return resample(tf.constant(images), tf.constant(sources)).numpy()


def test_the_filter_is_an_orthogonal_wavelet():
  # Orthogonal to its shifts by 2, and six vanishing moments of the mirror filter: that is sym6, up
  # to the choice of its phase.
  products = [SYM6[2 * k:] @ SYM6[:12 - 2 * k] for k in range(6)]
  np.testing.assert_allclose(products, [1, 0, 0, 0, 0, 0], atol=1e-11)
  high = SYM6 * (-1.0) ** np.arange(12)
  moments = [high @ np.arange(12.0) ** k for k in range(6)]
  np.testing.assert_allclose(moments, np.zeros(6), atol=1e-6)


def test_the_identity_changes_nothing():
  np.testing.assert_allclose(moved(NOISE, IDENTITY), NOISE, atol=1e-11)


def test_whole_pixels_move_exactly_and_the_border_is_reflected():
  found = moved(NOISE, [[1, 0, 2], [0, 1, -3]])  # It comes from 2 to the right and 3 up.
  padded = np.pad(NOISE, [(0, 0), (3, 0), (0, 2), (0, 0)], mode="reflect")
  expected = padded[:, :10, 2:]
  np.testing.assert_allclose(found[:, 2:, :-2], expected[:, 2:, :-2], atol=1e-10)
  np.testing.assert_allclose(found, expected, atol=0.5)  # The reflection of an upsampled image.


@pytest.mark.parametrize(("sources", "expected"), [
    ([[-1, 0, 0], [0, 1, 0]], SMOOTH[:, :, ::-1]),
    ([[0, 1, 0], [-1, 0, 0]], np.rot90(SMOOTH, 3, axes=(1, 2))),
    ([[1, 0, 0.4], [0, 1, -0.7]],
     np.exp(-((ROWS - 3.7) ** 2 + (COLUMNS - 0.6) ** 2) / 12)[None, :, :, None]),
    ([[0.8, 0, 0], [0, 0.8, 0]],
     np.exp(-((0.8 * ROWS - 3) ** 2 + (0.8 * COLUMNS - 1) ** 2) / 12)[None, :, :, None])],
    ids=["mirror", "turn", "part of a pixel", "scale"])
def test_a_smooth_image_moves_as_its_formula(sources, expected):
  np.testing.assert_allclose(moved(SMOOTH, sources), expected, atol=0.025)


def test_far_away_the_image_is_reflected_again_and_again():
  found = moved(NOISE[:, :8], [[1, 0, 14], [0, 1, -28]])  # The period is 14 pixels.
  np.testing.assert_allclose(found[:, 2:-2, 2:-2], NOISE[:, 2:6, 2:-2], atol=0.5)
  assert np.isfinite(moved(NOISE, [[1e4, 0, 1e5], [0, 1e-3, -1e5]])).all()
