"""ResNets have the logits and the numbers of parameters of the published networks.

`resnet_goldens.json` names the command that wrote it, and the versions of torchvision and PyTorch.
"""

import json
import pathlib

from benchmarks import resnet_parity
from benchmarks.feature_parity import digest, random_tensors
from models.vision.classification.resnet import Block, ConvNorm, ResNet

import keras
import numpy as np
import pytest
import tensorflow as tf

GOLDENS = json.loads(pathlib.Path(__file__).with_name("resnet_goldens.json").read_text())


def parameters(network: keras.Model) -> int:
  return sum(int(np.prod(v.shape)) for v in network.trainable_variables)


@pytest.mark.parametrize("depth, count", [
    (18, 11_689_512),
    pytest.param(50, 25_557_032, marks=pytest.mark.slow),
    pytest.param(101, 44_549_160, marks=pytest.mark.slow)])
def test_parameters_and_logits_are_torchvisions(depth, count):
  network = ResNet(1000, depth=depth)
  golden = GOLDENS["networks"][f"resnet{depth}"]
  assert parameters(network) == golden["parameters"] == count
  resnet_parity.assign(network, random_tensors(resnet_parity.shapes(network)))
  logits = network(resnet_parity.inputs(64)).numpy()
  for row, expected in zip(logits, golden["logits"], strict=True):
    np.testing.assert_allclose(digest(row), expected, rtol=1e-4, atol=1e-4 * expected[-1])


def test_resnet20_has_the_papers_parameters_and_sizes():
  network = ResNet(10, depth=20)
  assert parameters(network) == 269_722  # "0.27M"; 272,474 with 1x1 shortcuts.
  assert len(network.blocks) == 9 and network.num_features == 64
  x = network.stem(tf.zeros([1, 32, 32, 3]))
  sizes = [x.shape[1:]] + [(x := block(x)).shape[1:] for block in network.blocks]
  assert sizes == [(32, 32, 16)] * 4 + [(16, 16, 32)] * 3 + [(8, 8, 64)] * 3


def test_a_shortcut_without_parameters_takes_every_second_pixel_and_adds_zeros():
  block = Block(6, stride=2, bottleneck=False, projected=False)
  block.build((None, 4, 4, 3))
  block.residual[-1].norm.gamma.assign(tf.zeros([6]))
  x = tf.random.stateless_uniform([2, 4, 4, 3], [0, 1])
  outputs = block(x)
  np.testing.assert_array_equal(outputs[..., :3], x[:, ::2, ::2])
  np.testing.assert_array_equal(outputs[..., 3:], 0)


def test_gradients_of_a_projected_shortcut_of_few_channels_are_those_in_float64():
  gradients = {}
  for precision in ("float64", "float32"):
    keras.config.set_floatx(precision)
    keras.config.set_dtype_policy(precision)
    unit = ConvNorm(8, 1, stride=2)
    unit.build((None, None, None, 4))
    unit.conv.kernel.assign(np.random.default_rng(0).normal(size=unit.conv.kernel.shape))
    x = tf.constant(np.random.default_rng(1).normal(size=[4, 64, 64, 4]), precision)
    for _ in range(3):  # oneDNN's gradient of a stride would corrupt memory.
      with tf.GradientTape() as tape:
        loss = tf.reduce_sum(unit(x) ** 3)
      gradients[precision] = tape.gradient(loss, unit.conv.kernel.value)
  np.testing.assert_allclose(gradients["float32"], gradients["float64"], rtol=1e-3)


def test_blocks_begin_as_the_identity_and_kernels_with_the_variance_2_over_fan_out():
  keras.utils.set_random_seed(0)
  block = Block(64, stride=1, bottleneck=True, projected=True)
  block.build((None, None, None, 256))
  x = tf.random.stateless_uniform([2, 4, 4, 256], [0, 1])
  np.testing.assert_array_equal(block(x, training=True), x)
  # The first has a fan_out of 64 and a fan_in of 256.
  for layer, fan_out in zip(block.residual, (64, 9 * 64, 256), strict=True):
    deviation = np.std(layer.conv.kernel.numpy())
    np.testing.assert_allclose(deviation, np.sqrt(2 / fan_out), rtol=0.03)
  last = ResNet(1000, depth=20).linear.kernel.numpy()
  np.testing.assert_allclose(np.std(last), 0.01, rtol=0.02)


def test_in_half_precision_the_logits_are_float32():
  keras.config.set_dtype_policy("mixed_bfloat16")
  network = ResNet(10, channels=1, depth=20, stem="large", width_multiplier=0.25)
  images = tf.random.stateless_uniform([2, 64, 64, 1], [0, 1])
  assert network.stem(images).dtype == tf.bfloat16
  # A mean of rounded numbers has more digits than they have.
  features = network.features(images)
  assert np.any(features != tf.cast(tf.cast(features, tf.bfloat16), tf.float32))
  assert network(images, training=True).dtype == tf.float32
  assert {v.dtype for v in network.trainable_variables} == {"float32"}
