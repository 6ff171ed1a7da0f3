"""TF-GAN on today's TensorFlow: loaded aside, without its heavy imports, and in float64."""

import subprocess
import sys
import types

from models.gan.losses import tfgan

import pytest
import tensorflow as tf


def test_the_losses_are_loaded_once_and_nothing_else_changes():
  own = {name: types.ModuleType(name) for name in ("tensorflow_gan", "tensorflow_gan.python")}
  own["tensorflow_gan"].__spec__ = tfgan.importlib.util.find_spec("tensorflow_gan")
  sys.modules.update(own)
  compute_weighted_loss = tf.compat.v1.losses.compute_weighted_loss
  tfgan.losses.cache_clear()
  try:
    assert tfgan.losses() is tfgan.losses()
    left = {name: module for name, module in sys.modules.items() if "tensorflow_gan" in name}
  finally:
    for name in own:
      del sys.modules[name]
  assert left == own
  assert tf.compat.v1.losses.compute_weighted_loss is compute_weighted_loss
  assert tfgan.losses().__file__.endswith("tensorflow_gan/python/losses/losses_impl.py")


@pytest.mark.slow
def test_importing_our_modules_loads_nothing_heavy():
  # A fresh process, because this one has loaded it. Deprecation warnings are errors there, too.
  code = ("import sys, replicator, tensorflow as tf\n"
          "import models.gan.losses.adversarial, models.gan.evaluation.sample_quality\n"
          "import models.vision.files.image_folder\n"
          "from models.gan.losses import tfgan\n"
          "tfgan.losses()\n"
          "heavy = {'tensorflow_gan', 'tensorflow_probability', 'tensorflow_hub'}\n"
          "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n")
  subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
