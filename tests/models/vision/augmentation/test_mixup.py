"""MixUp and CutMix against NumPy, and the distribution of their shares."""

from models.vision.augmentation import mixup
from models.vision.augmentation.mixup import CutMix, MixUp
from replicator.step import context

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

N, SIZE, CLASSES = 64, 16, 10
RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(-1, 1, [N, SIZE, SIZE, 3])
LABELS = RNG.integers(0, CLASSES, N)
ONE_HOT = np.eye(CLASSES)[LABELS]
OTHER = np.arange(N) ^ 1


def mixed(mix) -> list[np.ndarray]:
  with context.entered(tf.constant(5, tf.int64)):
    return [x.numpy() for x in mix(tf.constant(IMAGES), tf.constant(ONE_HOT))]


@pytest.mark.parametrize("alpha", [0.2, 3.0])
def test_shares_have_the_beta_distribution(alpha):
  with context.entered(tf.constant(0, tf.int64)):
    shares = mixup._shares("test", tf.zeros([20_000, 1, 1, 1], tf.float64), alpha).numpy()
  assert shares.min() >= 0 and shares.max() <= 1
  assert scipy.stats.kstest(shares, scipy.stats.beta(alpha, alpha).cdf).pvalue > 0.01


def test_mixup_is_a_weighted_mean_of_neighbors_and_of_their_classes():
  images, classes = mixed(MixUp(1.0))
  share = ((images - IMAGES[OTHER]) * (IMAGES - IMAGES[OTHER])).sum((1, 2, 3)) / np.square(
      IMAGES - IMAGES[OTHER]).sum((1, 2, 3))
  keep = share[:, None]
  np.testing.assert_allclose(
      images, keep[..., None, None] * IMAGES + (1 - keep[..., None, None]) * IMAGES[OTHER])
  np.testing.assert_allclose(classes, keep * ONE_HOT + (1 - keep) * ONE_HOT[OTHER], atol=1e-12)
  assert len(np.unique(np.round(share, 6))) == N  # A share for each example.


def test_cutmix_puts_a_rectangle_of_the_neighbor_and_weights_classes_by_pixels():
  images, classes = mixed(CutMix())
  is_other = (images == IMAGES[OTHER]).all(-1)
  assert ((images == IMAGES).all(-1) ^ is_other).all()
  for mask in is_other:
    rows, columns = mask.any(1), mask.any(0)
    np.testing.assert_array_equal(mask, rows[:, None] & columns[None])
    for line in (rows, columns):  # Without a gap.
      assert np.count_nonzero(np.diff(np.pad(line, 1).astype(int))) in (0, 2)
  share = 1 - is_other.mean((1, 2))
  np.testing.assert_allclose(
      classes, share[:, None] * ONE_HOT + (1 - share[:, None]) * ONE_HOT[OTHER], atol=1e-12)
  assert 0.5 < share.mean() < 0.8  # 0.5 for alpha = 1, but for what is cut off at the border.


def test_in_float32_nothing_is_infinite_for_any_draw():
  with context.entered(tf.constant(0, tf.int64)):
    images, classes = MixUp(0.01)(tf.zeros([4096, 1, 1, 1]), tf.ones([4096, 2]))
  assert np.isfinite(images).all() and np.allclose(classes, 1)
