"""GANs from parts, and LOGAN: the parts of their formulas, and those that do not fit."""

import gin
import numpy as np
import pytest
import tensorflow as tf

import replicator
from experiments.gan import GAN
from experiments.logan import LOGAN
from models.gan.latents.distributions import normal_latents, truncated_normal_latents
from replicator import random
from replicator.step import context
from tests.experiments.line import BATCH, Line, line_gan


class Classifying(Line):
  """Scores `[n]` and logits `[n, 10]` of images."""

  def __init__(self):
    super().__init__(4, (11,))

  def call(self, inputs, labels=None, training=False):
    outputs = super().call(inputs)
    return outputs[:, 0], outputs[:, 1:]


def step_of(model: GAN, size: int = 16) -> dict[str, tf.Tensor]:
  """The scalars of one step, which is not compiled."""
  with context.entered(tf.constant(0, tf.int64)):
    return model({name: tf.constant(value[:size]) for name, value in BATCH.items()})


def test_the_classes_of_samples_are_part_of_the_generators_loss(float64):
  outputs = {}
  for weight in (0.0, 0.5):
    model = line_gan(GAN, Classifying, rate=0.0, conditional=True, generator_classification=weight,
                     penalties=[gin.get_configurable("classification")()])
    outputs[weight] = step_of(model)
  with context.entered(tf.constant(0, tf.int64)):
    for _ in range(2):  # The discriminator's, then the generator's.
      z = random.normal("z", [16, 3])
      labels = random.uniform("label", [16], 0, 10, tf.int32)
  logits = model.discriminator(model.generator(z))[1]
  expected = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
  found = outputs[0.5]["generator"] - outputs[0.0]["generator"]
  np.testing.assert_allclose(found, 0.5 * expected, rtol=1e-10)
  assert outputs[0.0]["penalty"] > 0


def test_an_image_is_reconstructed_from_its_code():
  model = line_gan(GAN, encoder=lambda **_: Line(4, (3,)))
  images, labels = BATCH["image"][:2], BATCH["label"][:2]
  expected = model.generate(model.encoder(tf.cast(images, tf.float32) / 127.5 - 1), labels)
  np.testing.assert_allclose(model.reconstruct(images, labels), expected, rtol=1e-5)
  without = line_gan(GAN)
  gin.bind_parameter("encoder/wrap_optimizer.ema_decay", 0.0)  # Averages of one, the initial ones.
  averaging = line_gan(GAN, encoder=lambda **_: Line(4, (3,)))
  averaging.encoder.set_weights([1 - weight for weight in averaging.encoder.get_weights()])
  np.testing.assert_allclose(averaging.reconstruct(images, labels), expected, rtol=1e-5)
  with pytest.raises(replicator.UsageError, match=r"GAN\.encoder = None: without an encoder"):
    without.reconstruct(images, labels)


def test_a_classification_without_a_classifier_is_refused_in_one_line():
  with pytest.raises(replicator.UsageError, match="classification: the discriminator gives scores"):
    step_of(line_gan(GAN, generator_classification=0.1))


@pytest.mark.parametrize("latents", [normal_latents, truncated_normal_latents])
def test_codes_that_would_be_clipped_where_they_do_not_move_are_refused(latents):
  with pytest.raises(replicator.UsageError, match=(
      rf"LOGAN.latents = @{latents.__name__}: .* must be uniform there; write LOGAN.lat")):
    line_gan(LOGAN, latents=latents)
