"""`models.export.plain_keras`: Keras' own layers compute what our networks compute."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from models.export.graph import FrozenGraph
from models.export.keras_rules import LAYERS, OPERATIONS
from models.export.plain_keras import plain_model
from models.gan.networks import bigbigan, biggan, biggan_deep, dcgan, r3gan, sngan
from models.rl.networks.actor_critic import Policy
from replicator import UsageError

CODE, LABEL, IMAGE, OBSERVATION, PIXELS = (
    tf.TensorSpec([None, 8], tf.float32, "z"), tf.TensorSpec([None], tf.int32, "label"),
    tf.TensorSpec([None, 8, 8, 3], tf.float32, "image"),
    tf.TensorSpec([None, 5], tf.float32, "observation"),
    tf.TensorSpec([None, 36, 36, 3], tf.uint8, "observation"))
SLOW = pytest.mark.slow
NETWORKS = {  # A network, and the arguments that it takes.
    "SNGAN": (lambda: sngan.SNGANGenerator(8, 3, 8, 0.02, num_classes=3), [CODE, LABEL]),
    "policy": (lambda: Policy((5,), 2, (8, 8)), [OBSERVATION]),
    "SNGAN without classes": (lambda: sngan.SNGANGenerator(8, 3, 8, 0.02), [CODE]),
    "SNGAN's encoder": (lambda: sngan.Encoder(8, 3, 8, 0.04), [IMAGE]),
    "BigGAN": (lambda: biggan.BigGANGenerator(8, 3, 8, 3, 4, 4, attention=8), [CODE, LABEL]),
    "BigGAN-deep": (
        lambda: biggan_deep.BigGANDeepGenerator(8, 3, 8, 3, 4, 4, leak=0.2), [CODE, LABEL]),
    "DCGAN": (lambda: dcgan.DCGANGenerator(8, 3, 8, 3, 4), [CODE, LABEL]),
    "R3GAN": (lambda: r3gan.R3GANGenerator(8, 3, 8, 3, (8, 8), (2, 2), 1), [CODE, LABEL]),
    "BigBiGAN's encoder": (lambda: bigbigan.BigBiGANEncoder(8, 3, 8, 4, 8, 2), [IMAGE]),
    "policy of pixels": (lambda: Policy((36, 36, 3), 2, (8, 8)), [PIXELS])}
QUICK = ("SNGAN", "policy")

# Keras' own, when it saves a variable.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def randomized(network):
  """Gives all variables random values, so that none is without effect."""
  generator = np.random.default_rng(0)
  for variable in network.variables:
    value = generator.normal(size=variable.shape)
    variable.assign(np.abs(value) + 0.5 if "variance" in variable.name else value * 0.3)
  return network


def drawn(spec, count=5):
  generator = np.random.default_rng(1)
  shape = [count, *spec.shape[1:]]
  if spec.dtype.is_integer:
    return tf.constant(generator.integers(0, 3, shape), spec.dtype)
  return tf.constant(generator.normal(size=shape), spec.dtype)


def called(model, given):
  return model(given if len(given) > 1 else given[0])


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=SLOW) for name in NETWORKS])
def test_a_plain_model_computes_the_same_after_it_was_loaded(name, tmp_path):
  make, specs = NETWORKS[name]
  network = randomized(make())

  def function(*given):
    result = network(*given)
    return result.mean if isinstance(result, bigbigan.CodeDistribution) else result

  plain_model("network", function, specs).save(tmp_path / "network.keras")
  loaded = keras.saving.load_model(tmp_path / "network.keras")
  given = [drawn(spec) for spec in specs]
  expected = function(*given).numpy()
  assert np.std(expected, 0).min() > 0
  np.testing.assert_allclose(called(loaded, given), expected, rtol=1e-6, atol=1e-6)
  assert [each.name for each in loaded.inputs] == [spec.name for spec in specs]
  assert all(type(layer).__module__.startswith("keras.") for layer in loaded.layers)


def test_a_frozen_graph_has_constants_for_what_depends_on_no_argument():
  scale, kernel = tf.Variable([2.0]), tf.Variable(tf.eye(8))
  compiled = tf.function(lambda z: z @ tf.linalg.inv(kernel * tf.exp(scale)), autograph=False)
  graph = FrozenGraph(compiled, [CODE])
  assert [operation.type for operation in graph.operations[:1]] == ["MatMul"]
  [found] = [value for value in graph.constants.values() if value.shape == (8, 8)]
  np.testing.assert_allclose(found, np.eye(8) / np.exp(2.0), rtol=1e-6)
  scale.assign([0.0])  # A copy was made.
  np.testing.assert_allclose(found, np.eye(8) / np.exp(2.0), rtol=1e-6)


# ---- Every rule ---------------------------------------------------------------------------------

KERNEL = np.random.default_rng(2).normal(size=(3, 3, 3, 4)).astype(np.float32)
MATRIX, VECTOR = KERNEL[0, :, :, :3].reshape(3, 9)[:, :8].copy(), KERNEL[0, 0, 0, :3].copy()
RULES = {  # Functions of an image, by the operations that they have.
    "MatMul": lambda x: tf.reshape(x, [-1, 3]) @ MATRIX + MATRIX[0],
    "MatMul of two results": lambda x: tf.matmul(x[:, 0, :, 0], x[:, 1, :, 0], transpose_a=True),
    "BatchMatMulV2": lambda x: tf.matmul(x[..., 0], x[..., 1], transpose_b=True),
    "BatchMatMulV2 of a constant": lambda x: tf.matmul(MATRIX[:, :8], x[..., 0]),
    "Conv2D": lambda x: tf.nn.bias_add(tf.nn.conv2d(x, KERNEL, 2, "VALID"), KERNEL[0, 0, 0]),
    "Conv2D whose result is used twice": lambda x: _twice(tf.nn.conv2d(x, KERNEL, 1, "SAME")),
    "Conv2DBackpropInput": lambda x: tf.nn.conv2d_transpose(
        x, KERNEL.transpose(0, 1, 3, 2), [tf.shape(x)[0], 16, 16, 4], 2),
    "AvgPoolGrad": lambda x: tf.raw_ops.AvgPoolGrad(
        orig_input_shape=[tf.shape(x)[0], 16, 16, 3], grad=x, ksize=[1, 2, 2, 1],
        strides=[1, 2, 2, 1], padding="VALID"),
    "AvgPool": lambda x: tf.nn.avg_pool2d(x, 2, 2, "VALID"),
    "MaxPool": lambda x: tf.nn.max_pool2d(x, 3, 2, "SAME"),
    "Reshape": lambda x: tf.reshape(x, [-1, 4, 48]),
    "ExpandDims": lambda x: tf.expand_dims(x, 2),
    "Squeeze": lambda x: tf.squeeze(x[:, :1], 1),
    "StridedSlice": lambda x: x[:, 1:7:2, tf.newaxis, 3, 1:],
    "StridedSlice with an ellipsis": lambda x: x[..., tf.newaxis, :2],
    "Transpose": lambda x: tf.transpose(x, [0, 3, 1, 2]),
    "ConcatV2": lambda x: tf.concat([x, x * 2], 2),
    "Split": lambda x: tf.split(x, 2, 1)[1],
    "SplitV": lambda x: tf.split(x, [1, 5, 2], 1)[1],
    "Pack": lambda x: tf.stack([x, x * 2], 2),
    "Unpack": lambda x: tf.unstack(x, axis=3)[1],
    "OneHot": lambda x: tf.one_hot(tf.cast(x[:, 0, 0, 0] > 0, tf.int32), 3),
    "Cast": lambda x: tf.cast(x, tf.float64),
    "Mean": lambda x: tf.reduce_mean(x, [1, 2]),
    "Sum": lambda x: tf.reduce_sum(x, -1, keepdims=True),
    "Max": lambda x: tf.reduce_max(x, [1, 2]),
    "LeakyRelu": lambda x: tf.nn.leaky_relu(x, 0.1),
    "Softmax": tf.nn.softmax,
    "Identity": tf.identity,
    "IdentityN": lambda x: tf.identity_n([x, x])[1],
    "EnsureShape": lambda x: tf.ensure_shape(x, x.shape),
    "StopGradient": tf.stop_gradient,
    "BiasAdd": lambda x: tf.nn.bias_add(x, VECTOR), "AddV2": lambda x: x + VECTOR,
    "Sub": lambda x: VECTOR - x, "Mul": lambda x: x * VECTOR, "RealDiv": lambda x: x / VECTOR,
    "Maximum": lambda x: tf.maximum(x, VECTOR), "Minimum": lambda x: tf.minimum(x, 0.0),
    "SquaredDifference": lambda x: tf.math.squared_difference(x, VECTOR),
    "Greater, SelectV2": lambda x: tf.where(x > 0.0, x, -VECTOR),
    "GreaterEqual": lambda x: tf.where(x >= VECTOR, x, 0.0),
    "Less": lambda x: tf.where(x < 0.0, x, 0.0),
    "Neg": lambda x: -x, "Abs, Sqrt": lambda x: tf.sqrt(tf.abs(x)), "Square": tf.square,
    "Rsqrt": lambda x: tf.math.rsqrt(tf.square(x) + 1.0), "Exp": tf.exp,
    "Log": lambda x: tf.math.log(tf.square(x) + 1.0), "Tanh": tf.tanh, "Sigmoid": tf.sigmoid,
    "Softplus": tf.nn.softplus, "Relu": tf.nn.relu, "Elu": tf.nn.elu, "Erf": tf.math.erf}


def _twice(y):
  return y + tf.tanh(y)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_computes_what_the_operation_computes(name):
  function, given = RULES[name], drawn(IMAGE)
  result = plain_model("network", function, [IMAGE])(given)
  expected = function(given)
  assert result.dtype == expected.dtype and result.shape == expected.shape
  np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)


def test_every_rule_has_a_case():
  found = {operation.type for function in RULES.values()
           for operation in FrozenGraph(function, [tf.TensorSpec([1, 8, 8, 3])]).operations}
  assert (LAYERS.keys() | OPERATIONS.keys()) - found <= {"BatchMatMulV3"}


def test_constants_of_each_example_fit_any_number_of_examples():
  model = plain_model("network", lambda z: z + tf.ones([tf.shape(z)[0], 8]), [CODE])
  for count in (1, 4):
    np.testing.assert_allclose(model(drawn(CODE, count)), drawn(CODE, count) + 1.0)


@pytest.mark.parametrize("function, words", [
    (lambda x: tf.cumsum(x, 1), "Cumsum 'Cumsum', an operation that is not known here"),
    (lambda x: tf.nn.conv2d(x, KERNEL, 1, [[0, 0], [1, 1], [1, 1], [0, 0]]),
     "Conv2D 'Conv2D', with explicit padding"),
    (lambda x: tf.one_hot(tf.cast(x[:, 0, 0, 0], tf.int32), 3, 2.0, 0.0),
     "OneHot 'one_hot', with other values than 1 and 0 on the last axis")])
def test_what_keras_does_not_have_is_named(function, words):
  with pytest.raises(UsageError) as error:
    plain_model("generator", function, [IMAGE])
  assert str(error.value) == (f"generator: Keras has nothing for {words}; write "
                              "--formats=savedmodel, which holds any network")
