"""Adversarial losses and their gradients against closed forms."""

from models.gan.losses import adversarial

import gin
import numpy as np
import pytest
import tensorflow as tf

SCORES = np.random.default_rng(0).normal(size=(2, 10), scale=1.5)

# float64 to its last bits: a loss that passes through float32 would be 1e-7 off.
DTYPES = [("float64", 1e-14), ("float32", 1e-6), ("bfloat16", 2e-2)]
CALLS = {"eager": lambda f: f, "function": tf.function,
         "xla": lambda f: tf.function(f, jit_compile=True)}


def softplus(x):
  return np.log1p(np.exp(x))


# The discriminator's loss and the generator's in closed form, by their name in gin.
CLOSED_FORMS = {
    "hinge": (lambda real, fake: np.mean(np.maximum(0, 1 - real) + np.maximum(0, 1 + fake)),
              lambda fake: -np.mean(fake)),
    "wasserstein": (lambda real, fake: np.mean(fake) - np.mean(real), lambda fake: -np.mean(fake)),
    "minimax": (lambda real, fake: np.mean(softplus(-real)) + np.mean(softplus(fake)),
                lambda fake: -np.mean(softplus(fake)) - softplus(-1)),
    "modified": (lambda real, fake: np.mean(softplus(-real)) + np.mean(softplus(fake)),
                 lambda fake: np.mean(softplus(-fake))),
    "least_squares": (lambda real, fake: (np.mean((real - 1) ** 2) + np.mean(fake ** 2)) / 2,
                      lambda fake: np.mean((fake - 1) ** 2) / 2),
}


@pytest.mark.parametrize("dtype, tolerance", DTYPES)
@pytest.mark.parametrize("name, shape, called", [
    *(("hinge", [10], called) for called in CALLS), ("hinge", [10, 1], "eager"),
    *((name, [10], "eager") for name in list(CLOSED_FORMS)[1:])])
def test_losses_equal_the_closed_form(dtype, tolerance, name, shape, called):
  real, fake = (tf.cast(tf.reshape(scores, shape), dtype) for scores in SCORES)
  loss = gin.get_configurable(name)()
  d_loss, g_loss = CALLS[called](lambda: (
      loss.discriminator(real, fake), loss.generator(fake)))()
  assert d_loss.shape == g_loss.shape == []
  assert d_loss.dtype == g_loss.dtype == (tf.float64 if dtype == "float64" else tf.float32)
  discriminator, generator = CLOSED_FORMS[name]
  np.testing.assert_allclose(d_loss, discriminator(*SCORES), rtol=tolerance)
  np.testing.assert_allclose(g_loss, generator(SCORES[1]), rtol=tolerance * 10)


@pytest.mark.parametrize("name, expected", [
    ("hinge", np.mean), ("modified", lambda real: np.mean(softplus(real))),
    ("minimax", lambda real: -np.mean(softplus(-real)) - softplus(-1)),
    ("least_squares", lambda real: np.mean(real ** 2) / 2)])
def test_an_encoder_makes_real_pairs_look_generated(name, expected):
  loss = gin.get_configurable(name)()
  np.testing.assert_allclose(loss.encoder(tf.constant(SCORES[0])), expected(SCORES[0]), rtol=1e-13)


def test_the_border_of_the_accuracy_is_between_the_labels():
  loss = adversarial.least_squares(real_label=3.0, fake_label=1.0)
  assert loss.accuracy(tf.constant([2.5, 1.5]), tf.constant([1.5, 0.5])) == 0.75


# A real example has the label 0.9, and a generated one 0.
SMOOTHED = softplus(-2.0) * 0.9 + softplus(2.0) * 0.1 + softplus(3.0)


# The labels of the generator are not smoothed.
@pytest.mark.parametrize("name, options, expected, of_generator", [
    ("minimax", {"label_smoothing": 0.2}, SMOOTHED, -softplus(3.0) - softplus(-1.0)),
    ("modified", {"label_smoothing": 0.2}, SMOOTHED, softplus(-3.0)),
    ("least_squares", {"real_label": 2.5, "fake_label": 1.0}, (0.5 ** 2 + 2.0 ** 2) / 2,
     0.5 ** 2 / 2),
])
def test_gin_sets_the_options_of_a_loss(name, options, expected, of_generator):
  for option, value in options.items():
    gin.bind_parameter(f"{name}.{option}", value)
  loss = gin.get_configurable(name)()
  real, fake = tf.constant([2.0], tf.float64), tf.constant([3.0], tf.float64)
  np.testing.assert_allclose(loss.discriminator(real, fake), expected, rtol=1e-14)
  np.testing.assert_allclose(loss.generator(fake), of_generator, rtol=1e-7)  # TF-GAN's constant.


@pytest.mark.parametrize("dtype, tolerance", DTYPES)
def test_the_relativistic_loss_compares_each_pair(dtype, tolerance):
  loss = adversarial.relativistic(*(tf.cast(scores, dtype) for scores in SCORES))
  assert loss.dtype == (tf.float64 if dtype == "float64" else tf.float32)
  np.testing.assert_allclose(loss, np.mean(softplus(SCORES[1] - SCORES[0])), rtol=tolerance)
