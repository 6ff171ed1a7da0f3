"""Each kind of change by what it must keep, and its derivatives."""

from models.gan.augmentation.diffaugment import DiffAugment

import numpy as np
import tensorflow as tf

IMAGES = np.random.default_rng(0).uniform(-1, 1, size=[400, 8, 10, 3])


def only(kind: str, images=IMAGES) -> np.ndarray:
  kinds = dict.fromkeys(("color", "translation", "cutout"), False)
  return DiffAugment(**{**kinds, kind: True})(tf.constant(images)).numpy()


def test_color_is_one_affine_change_of_each_image():
  found = only("color")
  # Contrast times differences between pixels of a channel mean; the saturation those of channels.
  gray, changed = IMAGES.mean(3), found.mean(3)
  contrast = (changed[:, 0, 0] - changed[:, 5, 5]) / (gray[:, 0, 0] - gray[:, 5, 5])
  assert 0.5 <= contrast.min() < 0.52 and 1.48 < contrast.max() < 1.5
  both = (found - changed[..., None])[:, 0, 0, 0] / (IMAGES - gray[..., None])[:, 0, 0, 0]
  saturation = both / contrast
  assert 0 <= saturation.min() < 0.03 and 1.97 < saturation.max() < 2
  brightness = (found - IMAGES).mean((1, 2, 3))
  assert -0.5 <= brightness.min() < -0.48 and 0.48 < brightness.max() < 0.5
  expected = (contrast * saturation)[:, None, None, None] * (IMAGES - gray[..., None])
  expected += (contrast[:, None, None] * (gray - gray.mean((1, 2), keepdims=True))
               + (gray.mean((1, 2)) + brightness)[:, None, None])[..., None]
  np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_gray_images_have_no_saturation():
  found = only("color", IMAGES[..., :1])
  mean = IMAGES[..., :1].mean((1, 2, 3), keepdims=True)
  ratio = (found - found.mean((1, 2, 3), keepdims=True)) / (IMAGES[..., :1] - mean)
  np.testing.assert_allclose(ratio, np.broadcast_to(ratio[:, :1, :1], ratio.shape), rtol=1e-6)


def test_translation_is_by_an_eighth_and_fills_with_zeros():
  found = only("translation", np.ones([400, 8, 10, 1]))[..., 0]
  assert set(found.any(2).sum(1)) == {7, 8} and set(found.any(1).sum(1)) == {9, 10}
  assert set(np.unique(found)) == {0.0, 1.0}
  assert len({tuple(image.ravel()) for image in found}) == 9


def test_cutout_is_a_clipped_square_of_half_the_size():
  hole = only("cutout", np.ones([800, 8, 10, 1]))[..., 0] == 0
  heights, widths = hole.any(2).sum(1), hole.any(1).sum(1)
  # 4 rows and 5 columns, fewer at a border; its middle is at any of 9 rows and 10 columns.
  assert set(heights) == {2, 3, 4} and set(widths) == {3, 4, 5}
  assert (hole.sum((1, 2)) == heights * widths).all()
  assert len({tuple(image.ravel()) for image in hole}) == 90


def test_it_is_differentiable_at_half_precision_too():
  images = tf.constant(IMAGES[:4], tf.bfloat16)
  with tf.GradientTape() as tape:
    tape.watch(images)
    changed = DiffAugment()(images)
  assert changed.dtype == tf.bfloat16
  assert np.isfinite(tape.gradient(changed, images).numpy().astype(np.float32)).all()
