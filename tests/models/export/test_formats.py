"""`models.export.formats` and `graph`: files compute what our networks and stock layers compute."""

from models.export import formats, loading
from models.export.graph import FrozenGraph
from models.export.networks import ExportedNetwork, Values
from models.gan.networks import bigbigan, biggan, biggan_deep, dcgan, r3gan, sngan
from models.rl.networks.actor_critic import Policy
from tests.programs.refusals import refusal

import keras
import numpy as np
import pytest
import tensorflow as tf

LATENT = Values("z", (8,), "float32", "latents")
IMAGE = Values("image", (8, 8, 3), "float32", "images")
LABEL = Values("label", (), "int32", "classes", 0, 2)
OBSERVATION = Values("observation", (5,), "float32", "numbers")
PIXELS = Values("observation", (36, 36, 3), "uint8", "frames", 0, 255)


layers = keras.layers


def stock(*others):
  """A generator of layers of Keras."""
  return keras.Sequential([
      keras.Input([8]), layers.Dense(4 * 4 * 6), layers.Reshape([4, 4, 6]), *others])


SLOW = pytest.mark.slow
NETWORKS = {  # A network, and the arguments that it takes.
    "SNGAN": (lambda: sngan.SNGANGenerator(8, 3, 8, 0.02, num_classes=3), [LATENT, LABEL]),
    "policy": (lambda: Policy((5,), 2, (8, 8)), [OBSERVATION]),
    "stock upsampling": (lambda: stock(
        layers.UpSampling2D(2), layers.Conv2D(6, 3, padding="same"), layers.BatchNormalization(),
        layers.ReLU(), layers.UpSampling2D(2, interpolation="bilinear"),
        layers.Conv2D(3, 3, padding="same", activation="tanh")), [LATENT]),
    "stock transposed convolution": (lambda: stock(
        layers.Conv2DTranspose(6, 4, 2, padding="same"), layers.BatchNormalization(),
        layers.LeakyReLU(0.2), layers.Conv2DTranspose(3, 5, 3, activation="tanh")), [LATENT]),
    "SNGAN without classes": (lambda: sngan.SNGANGenerator(8, 3, 8, 0.02), [LATENT]),
    "SNGAN's encoder": (lambda: sngan.Encoder(8, 3, 8, 0.04), [IMAGE]),
    "BigGAN": (lambda: biggan.BigGANGenerator(8, 3, 8, 3, 4, 4, attention=8), [LATENT, LABEL]),
    "BigGAN-deep": (
        lambda: biggan_deep.BigGANDeepGenerator(8, 3, 8, 3, 4, 4, negative_slope=0.2), [LATENT,
                                                                                        LABEL]),
    "DCGAN": (lambda: dcgan.DCGANGenerator(8, 3, 8, 3, 4), [LATENT, LABEL]),
    "R3GAN": (lambda: r3gan.R3GANGenerator(8, 3, 8, 3, (8, 8), (2, 2), 1), [LATENT, LABEL]),
    "BigBiGAN's encoder": (lambda: bigbigan.BigBiGANEncoder(8, 3, 8, 4, 8, 2), [IMAGE]),
    "policy of pixels": (lambda: Policy((36, 36, 3), 2, (8, 8)), [PIXELS])}
QUICK = list(NETWORKS)[:3]


def exported(function, inputs):
  """A network that has the shape and dtype of the function's result."""
  result = function(*(tf.zeros([1, *each.shape], each.dtype) for each in inputs))
  output = Values("result", tuple(result.shape[1:]), result.dtype.name, "numbers")
  return ExportedNetwork("network", "Computes.", tuple(inputs), output, function)


def randomized(network):
  """Gives all variables random values, so that none is without effect."""
  generator = np.random.default_rng(0)
  for variable in network.variables:
    value = generator.normal(size=variable.shape)
    variable.assign(np.abs(value) + 0.5 if "variance" in variable.name else value * 0.3)
  return network


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=SLOW) for name in NETWORKS])
def test_files_compute_the_same_for_any_number_of_examples(name, tmp_path):
  make, inputs = NETWORKS[name]
  network = randomized(make())

  def function(*given):
    result = network(*given)
    return result.mean if isinstance(result, bigbigan.LatentDistribution) else result

  whole = exported(function, inputs)
  for path in formats.write(whole, list(formats.SUFFIXES), tmp_path):
    for count in (1, 5):
      given = {each.name: array for each, array in zip(inputs, whole.example(count), strict=True)}
      expected = function(*given.values()).numpy()
      assert count == 1 or np.std(expected, 0).max() > 1e-4
      found = loading.LOADERS[path.suffix](str(path), given)
      np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * max(1, abs(expected).max()))


def test_values_of_each_example_fit_any_number_of_examples(tmp_path):
  whole = exported(lambda z: z + tf.ones([tf.shape(z)[0], 8]), [LATENT])
  for path in formats.write(whole, list(formats.SUFFIXES), tmp_path):
    for z in (whole.example(1)[0], whole.example(4)[0]):
      np.testing.assert_allclose(loading.LOADERS[path.suffix](str(path), {"z": z}), z + 1)


def test_onnx_computes_the_gelu_of_keras(tmp_path):
  whole = exported(keras.activations.gelu, [LATENT])
  [path] = formats.write(whole, ["onnx"], tmp_path)
  [z] = whole.example(3)
  np.testing.assert_allclose(loading.of_onnx(str(path), {"z": z}), keras.activations.gelu(z),
                             rtol=0, atol=1e-6)


def test_blocks_of_any_size_are_repeated_and_divided(tmp_path):
  def spread(z):
    return tf.raw_ops.AvgPoolGrad(
        orig_input_shape=[tf.shape(z)[0], 8, 12, 2], grad=tf.reshape(z, [-1, 4, 4, 2]),
        ksize=[1, 2, 3, 1], strides=[1, 2, 3, 1], padding="VALID")
  whole = exported(spread, [Values("z", (32,), "float64", "numbers")])
  [path] = formats.write(whole, ["onnx"], tmp_path)
  [z] = whole.example(3)
  np.testing.assert_allclose(loading.of_onnx(str(path), {"z": z}), spread(z), rtol=1e-12)


@pytest.mark.parametrize("function, words", [
    (lambda z: tf.math.betainc(1.0, 2.0, z), "No Op registered for Betainc with domain_version of"),
    (lambda z: tf.raw_ops.AvgPoolGrad(
        orig_input_shape=[tf.shape(z)[0], 5, 5, 2], grad=tf.reshape(z, [-1, 2, 2, 2]),
        ksize=[1, 3, 3, 1], strides=[1, 2, 2, 1], padding="VALID"), "No Op registered for Avg")])
def test_what_onnx_does_not_have_is_named(function, words, tmp_path, capfd):
  whole = exported(function, [LATENT])
  assert formats.write(whole, ["savedmodel"], tmp_path) == [tmp_path / "network"]
  capfd.readouterr()
  line = refusal(formats.write, whole, ["onnx"], tmp_path)
  assert line.startswith(f"network: cannot be converted to ONNX ({words}")
  assert line.endswith("; use --formats=savedmodel, which supports any network")
  assert capfd.readouterr().err == ""


def test_a_frozen_graph_has_constants_for_what_depends_on_no_argument():
  scale, kernel = tf.Variable([2.0]), tf.Variable(tf.eye(8))
  compiled = tf.function(lambda z: z @ tf.linalg.inv(kernel * tf.exp(scale)), autograph=False)
  graph = FrozenGraph(compiled, [LATENT.spec])
  assert [operation.type for operation in graph.operations[:1]] == ["MatMul"]
  [found] = [value for value in graph.constants.values() if value.shape == (8, 8)]
  np.testing.assert_allclose(found, np.eye(8) / np.exp(2.0), rtol=1e-6)
  scale.assign([0.0])  # A copy was made.
  np.testing.assert_allclose(found, np.eye(8) / np.exp(2.0), rtol=1e-6)
