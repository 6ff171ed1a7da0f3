"""All networks of GANs: gradients reach every variable, those of a penalty too, and mistakes."""

import functools
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

from models.gan.networks.biggan import BigGANDiscriminator, BigGANGenerator
from models.gan.networks.biggan_deep import BigGANDeepDiscriminator, BigGANDeepGenerator
from models.gan.networks.dcgan import DCGANDiscriminator, DCGANGenerator
from models.gan.networks.r3gan import R3GANDiscriminator, R3GANGenerator
from models.gan.networks.sngan import SNGANDiscriminator, SNGANGenerator
from replicator import UsageError
from tests.models.gan.networks.second_order import assert_penalty_gradient

LABELS = tf.constant([2, 0, 1])


class Pair(NamedTuple):
  """Makers of a small generator and discriminator of three classes."""

  generator: functools.partial
  discriminator: functools.partial


def pair(generator, discriminator, **options) -> Pair:
  return Pair(functools.partial(generator, num_classes=3, **options),
              functools.partial(discriminator, num_classes=3, **options))


PAIRS = {
    "sngan": pair(SNGANGenerator, SNGANDiscriminator, width=1 / 16),
    "dcgan": pair(DCGANGenerator, DCGANDiscriminator, width=4),
    "biggan": pair(BigGANGenerator, BigGANDiscriminator, width=4, attention=8),
    "biggan_deep": pair(BigGANDeepGenerator, BigGANDeepDiscriminator, width=4),
    "r3gan": pair(R3GANGenerator, R3GANDiscriminator, widths=(12, 8, 4), groups=(4, 2, 1)),
}


def normal(*shape: int) -> tf.Tensor:
  return tf.constant(np.random.default_rng(0).normal(size=shape))


@pytest.fixture(scope="module", params=PAIRS)
def networks(request):
  """A float64 generator and discriminator for 16 pixels, moved from their zeros and ones."""
  keras.utils.set_random_seed(0)
  keras.config.set_dtype_policy("float64")
  made = PAIRS[request.param]
  found = made.generator(16, 3, 6), made.discriminator(16, 3)
  keras.config.set_dtype_policy("float32")
  random = np.random.default_rng(1)
  for v in [v for network in found for v in network.trainable_variables]:
    v.assign(v + 0.1 * random.normal(size=v.shape))
  return found


def test_gradients_reach_every_variable(networks):
  generator, discriminator = networks
  with tf.GradientTape() as tape:
    scores = discriminator(generator(normal(3, 6), LABELS, training=True), LABELS, training=True)
    loss = tf.reduce_mean(tf.square(scores))
  variables = generator.trainable_variables + discriminator.trainable_variables
  for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
    assert gradient is not None and np.isfinite(gradient).all(), variable.path
    # A bias before batch normalization has no effect.
    assert variable.name == "bias" or np.any(gradient), variable.path


@pytest.mark.parametrize("name", PAIRS)
def test_a_gradient_penalty_has_the_derivatives_of_finite_differences(name):
  # Small, so that no difference crosses the kink of a leaky ReLU, where the penalty jumps.
  small = {"r3gan": {"widths": (8, 4), "groups": (2, 1), "blocks": 1},
           "biggan": {"attention": 4}}.get(name, {})
  keras.utils.set_random_seed(0)
  keras.config.set_dtype_policy("float64")
  discriminator = PAIRS[name].discriminator(8, 2, **small)
  keras.config.set_dtype_policy("float32")
  random = np.random.default_rng(1)
  for v in discriminator.trainable_variables:
    v.assign(v + 0.2 * random.normal(size=v.shape))
  squashed = tf.tanh if name == "dcgan" else tf.identity  # So that its batch statistics matter.
  assert_penalty_gradient(discriminator, lambda x: squashed(
      discriminator(x, LABELS, training=name == "dcgan")), normal(3, 8, 8, 2))


def test_calls_without_labels_and_of_other_images_are_refused(networks):
  generator, discriminator = networks
  for call, message in [
      (lambda: generator(normal(3, 6)), r"num_classes = 3 .* given no labels"),
      (lambda: discriminator(normal(3, 16, 16, 3)), r"num_classes = 3 .* given no labels"),
      (lambda: discriminator(normal(3, 8, 8, 3), LABELS), "16 x 16 x 3 but was given 8 x 8 x 3")]:
    with pytest.raises(UsageError, match=message):
      call()


@pytest.mark.parametrize("make", [make for made in PAIRS.values() for make in made],
                         ids=lambda make: make.func.__name__)
def test_an_unknown_resolution_is_refused(make):
  name = make.func.__name__
  with pytest.raises(UsageError, match=rf"^{name}\.resolution = 28: .* one of 8, 16, 32, 64"):
    make.func(28)
