"""TF-GAN on today's TensorFlow: loaded aside, in float64, without its heavy imports."""

import subprocess
import sys
import types
import warnings

import numpy as np
import pytest
import tensorflow as tf

from models.gan.losses import tfgan


def fresh():
  """Clears the caches, so that a test loads the modules itself."""
  tfgan.losses.cache_clear()
  tfgan.classifier_metrics.cache_clear()


def test_modules_come_from_tf_gan_and_are_loaded_once():
  assert tfgan.losses().__name__ == "tensorflow_gan.python.losses.losses_impl"
  assert tfgan.losses() is tfgan.losses()
  metrics = tfgan.classifier_metrics()
  assert metrics.__name__ == "tensorflow_gan.python.eval.classifier_metrics"
  assert metrics is tfgan.classifier_metrics()


def test_loading_changes_nothing_else():
  own = {name: types.ModuleType(name) for name in ("tensorflow_gan", "tensorflow_gan.python")}
  sys.modules.update(own)
  compute_weighted_loss = tf.compat.v1.losses.compute_weighted_loss
  try:
    fresh()
    tfgan.losses(), tfgan.classifier_metrics()
    left = {name: module for name, module in sys.modules.items() if "tensorflow_gan" in name}
  finally:
    for name in own:
      del sys.modules[name]
  assert left == own
  assert tf.compat.v1.losses.compute_weighted_loss is compute_weighted_loss
  assert not hasattr(tf, "estimator")


@pytest.mark.slow
def test_importing_our_modules_loads_nothing_heavy():
  # A fresh process, because this one has loaded it. Deprecation warnings are errors there, too.
  code = ("import sys, replicator, tensorflow as tf\n"
          "import models.gan.losses.adversarial, models.gan.evaluation.sample_quality\n"
          "import models.vision.files.image_folder\n"
          "heavy = {'tensorflow_gan', 'tensorflow_probability', 'tensorflow_hub'}\n"
          "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
          "from models.gan.losses import tfgan\n"
          "tfgan.losses()\n"
          "assert 'tensorflow_probability' not in sys.modules\n"
          "tfgan.classifier_metrics()\n")
  subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_the_error_of_a_missing_package_says_what_to_install(monkeypatch):
  fresh()
  monkeypatch.setattr(tfgan.importlib.util, "find_spec", lambda name: None)
  with pytest.raises(ImportError, match="pip install tensorflow-gan"):
    tfgan.losses()


# Every TF-GAN loss must keep float64. The least squares losses are
# mean((real - 1)^2) / 2 + mean(fake^2) / 2 (Mao et al. 2016, equation 9 with a = 0, b = c = 1).
def test_weighted_losses_keep_float64():
  real, fake = np.random.default_rng(0).normal(size=(2, 7))
  weights = np.array([1, 2, 0, 1, 1, 0.5, 1])
  loss = tfgan.losses().least_squares_discriminator_loss(
      tf.constant(real), tf.constant(fake), real_weights=tf.constant(weights))
  # TF-GAN divides by the number of nonzero weights.
  expected = np.sum(weights * (real - 1) ** 2) / 6 / 2 + np.mean(fake**2) / 2
  np.testing.assert_allclose(loss, expected, rtol=1e-14)
  assert loss.dtype == tf.float64


def test_another_reduction_is_refused():
  with pytest.raises(NotImplementedError, match="weighted_sum"):
    tfgan.losses().wasserstein_generator_loss(
        tf.zeros([2], tf.float64), reduction=tf.compat.v1.losses.Reduction.SUM)


def test_the_covariance_is_that_of_tensorflow_probability_bit_for_bit():
  x = tf.constant(np.random.default_rng(0).normal(size=[50, 7]))
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Deprecated names.
    import tensorflow_probability as tfp
  np.testing.assert_array_equal(
      tfgan.classifier_metrics().tfp.stats.covariance(x), tfp.stats.covariance(x))
