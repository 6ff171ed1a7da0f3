"""BiGAN: pairs of an image with its code, and of a code with its sample."""

import numpy as np
import pytest
import tensorflow as tf

from models.vision.images.image_source import to_unit_range
from replicator.step import context
from tests.experiments.tiny_gans import build

pytestmark = pytest.mark.usefixtures("restored", "without_curves")


def test_each_image_has_its_own_code_and_each_code_its_own_sample(float64):
  model = build("bigan")
  generator = np.random.default_rng(0)
  images = to_unit_range(generator.integers(0, 256, [4, 8, 8, 1]).astype(np.uint8), tf.float64)
  z = tf.constant(generator.normal(size=[4, model.latent_dim]))
  seen = {}

  def discriminator(images, labels, codes, training):
    seen.update(images=images, codes=codes)
    return tf.reduce_mean(images, [1, 2, 3])

  with context.entered(tf.constant(0, tf.int64)):
    model.discriminator = discriminator
    model._discriminator_loss(images, tf.range(4), z, tf.range(4))
    np.testing.assert_array_equal(seen["images"][:4], images)
    np.testing.assert_allclose(seen["codes"][:4], model.encoder(images, training=True), rtol=1e-9)
    np.testing.assert_allclose(seen["images"][4:],
                               model.generator(z, tf.range(4), training=True), rtol=1e-9)
    np.testing.assert_array_equal(seen["codes"][4:], z)
