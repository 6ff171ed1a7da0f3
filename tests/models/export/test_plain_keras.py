"""`models.export.plain_keras`: Keras' own layers compute what our networks compute."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from models.export.plain_keras import plain_model
from models.gan.networks import bigbigan, biggan, biggan_deep, dcgan, r3gan, sngan
from models.rl.networks import Policy
from replicator import UsageError

CODE, LABEL, IMAGE = (
    tf.TensorSpec([None, 8], tf.float32, "z"), tf.TensorSpec([None], tf.int32, "label"),
    tf.TensorSpec([None, 8, 8, 3], tf.float32, "image"))
OF_CODES = [CODE, LABEL]
NETWORKS = {  # A network, and the arguments that it takes.
    "SNGAN": (lambda: sngan.Generator(8, 3, 8, 0.02, num_classes=3), OF_CODES),
    "SNGAN without classes": (lambda: sngan.Generator(8, 3, 8, 0.02), [CODE]),
    "SNGAN's encoder": (lambda: sngan.Encoder(8, 3, 8, 0.04), [IMAGE]),
    "BigGAN": (lambda: biggan.BigGANGenerator(8, 3, 8, 3, 4, 4, attention=8), OF_CODES),
    "BigGAN-deep": (lambda: biggan_deep.BigGANDeepGenerator(8, 3, 8, 3, 4, 4, leak=0.2), OF_CODES),
    "DCGAN": (lambda: dcgan.DCGANGenerator(8, 3, 8, 3, 4), OF_CODES),
    "R3GAN": (lambda: r3gan.R3GANGenerator(8, 3, 8, 3, (8, 8), (2, 2), 1), OF_CODES),
    "BigBiGAN's encoder": (lambda: bigbigan.BigBiGANEncoder(8, 3, 8, 4, 8, 2), [IMAGE]),
    "policy": (lambda: Policy((5,), 2, (8, 8)), [tf.TensorSpec([None, 5], tf.float32, "observation")]),
    "policy of pixels": (lambda: Policy((36, 36, 3), 2, (8, 8)),
                         [tf.TensorSpec([None, 36, 36, 3], tf.uint8, "observation")])}

# Keras' own, when it saves a variable.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def randomized(network, generator):
  """Gives all variables random values, so that none has no effect."""
  for variable in network.variables:
    value = generator.normal(size=variable.shape)
    variable.assign(np.abs(value) + 0.5 if "variance" in variable.name else value * 0.3)
  return network


def drawn(spec, generator):
  shape = [5, *spec.shape[1:]]
  if spec.dtype.is_integer:
    return tf.constant(generator.integers(0, 3, shape), spec.dtype)
  return tf.constant(generator.normal(size=shape), spec.dtype)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_plain_model_computes_the_same(name, tmp_path):
  generator = np.random.default_rng(0)
  make, specs = NETWORKS[name]
  network = randomized(make(), generator)

  def function(*given):
    result = network(*given)
    return result.mean if isinstance(result, bigbigan.CodeDistribution) else result

  made = plain_model("network", function, specs)
  made.save(tmp_path / "network.keras")
  loaded = keras.saving.load_model(tmp_path / "network.keras")
  given = [drawn(spec, generator) for spec in specs]
  expected = function(*given).numpy()
  assert np.std(expected, 0).min() > 0
  for model in (made, loaded):
    np.testing.assert_allclose(model(given if len(given) > 1 else given[0]), expected, rtol=1e-6,
                               atol=1e-6)
  assert [each.name for each in loaded.inputs] == [spec.name for spec in specs]
