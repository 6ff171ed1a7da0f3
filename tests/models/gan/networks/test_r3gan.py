"""The R3GAN networks: the functions that they compute."""

from models.gan.networks.grouped_conv import grouped_conv2d
from models.gan.networks.r3gan import R3GANDiscriminator, R3GANGenerator
from tests.models.gan.networks.plain import leaky, made, moved, normal

import keras
import numpy as np
import pytest
import tensorflow as tf

SMALL = {"widths": (12, 8, 4), "groups": (4, 2, 1)}
LABELS = tf.constant([2, 0, 1])


@pytest.fixture(scope="module")
def networks():
  """A float64 generator and discriminator of classes for 16 pixels, moved from their zeros."""
  return moved(made(lambda: (
      R3GANGenerator(16, 3, 5, 3, **SMALL), R3GANDiscriminator(16, 3, 3, **SMALL))), 0.2)


# The networks as in the paper, in elementary operations.

LOW_PASS = np.outer([1, 3, 3, 1], [1, 3, 3, 1]) / 64


def plain_downsample(x):
  kernel = np.tile(LOW_PASS[:, :, None, None], [1, 1, x.shape[-1], 1])
  padded = tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]])
  return tf.nn.depthwise_conv2d(padded, tf.constant(kernel, x.dtype), [1, 2, 2, 1], "VALID")


def plain_upsample(x):
  """Zeros between the pixels, then the filter times 4."""
  n, h, w, c = x.shape
  spread = np.zeros([n, 2 * h + 3, 2 * w + 3, c])
  spread[:, 2:-2:2, 2:-2:2] = x
  kernel = tf.constant(np.tile(4 * LOW_PASS[:, :, None, None], [1, 1, c, 1]))
  return tf.nn.depthwise_conv2d(spread, kernel, [1, 1, 1, 1], "VALID")


def plain_grouped(x, layer):
  """Each output as a sum over the inputs of its group, one tap at a time."""
  kernel, bias = layer.kernel.numpy(), layer.bias.numpy()
  own, outputs = kernel.shape[2], kernel.shape[3] // layer.groups
  padded = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)])
  h, w = x.shape[1:3]
  y = np.zeros([*x.shape[:3], kernel.shape[3]])
  for group in range(layer.groups):
    inputs = slice(group * own, (group + 1) * own)
    target = slice(group * outputs, (group + 1) * outputs)
    for i, j in np.ndindex(3, 3):
      y[..., target] += padded[:, i:i + h, j:j + w, inputs] @ kernel[i, j][:, target]
  return y + bias


def linear(x, layer):
  kernel = layer.kernel.numpy()
  return x @ kernel.reshape(kernel.shape[-2:])


def plain_block(x, block):
  y = leaky(linear(x, block.expand) + block.expand.bias.numpy())
  return x + linear(leaky(plain_grouped(y.numpy(), block.mix)), block.reduce)


def plain_trunk(x, layers):
  for layer in layers:
    if hasattr(layer, "mix"):
      x = plain_block(x, layer)
    elif layer.up:
      x = plain_upsample(linear(x, layer.conv))
    else:
      x = linear(plain_downsample(x), layer.conv)
  return np.asarray(x)


def test_generator_equals_the_plain_one(networks):
  generator, _ = networks
  z = normal(3, 5)
  latent = np.concatenate([z, generator.embedding.kernel.numpy()[LABELS]], 1)
  x = linear(latent, generator.linear)[:, None, None] * generator.base.numpy()
  expected = linear(plain_trunk(x, generator.trunk), generator.to_image)
  assert len(generator.trunk) == 3 * 2 + 2
  np.testing.assert_allclose(generator(z, LABELS), expected, rtol=1e-11, atol=1e-12)


def test_discriminator_equals_the_plain_one(networks):
  _, discriminator = networks
  images = normal(3, 16, 16, 3)
  x = plain_trunk(linear(images, discriminator.from_image), discriminator.trunk)
  features = np.sum(x * discriminator.base.numpy(), (1, 2))
  np.testing.assert_allclose(discriminator.features(images), features, rtol=1e-11)
  embedded = discriminator.embedding.kernel.numpy()[LABELS]
  expected = np.sum(linear(features, discriminator.linear) * embedded, 1)
  np.testing.assert_allclose(discriminator(images, LABELS), expected, rtol=1e-11)


def test_an_accelerator_gets_one_grouped_convolution(monkeypatch):
  x, kernel = normal(2, 5, 4, 12), normal(3, 3, 2, 18)
  expected = grouped_conv2d(x, kernel, 6)
  devices = [tf.config.LogicalDevice(f"{kind}:0", kind) for kind in ("CPU", "GPU")]
  monkeypatch.setattr(tf.config, "list_logical_devices", lambda: devices)
  with tf.Graph().as_default() as graph:
    grouped_conv2d(tf.constant(x.numpy()), tf.constant(kernel.numpy()), 6)
  assert [operation.type for operation in graph.get_operations()].count("Conv2D") == 1
  np.testing.assert_allclose(grouped_conv2d(x, kernel, 6), expected, atol=1e-13)


@pytest.mark.slow
def test_second_order_gradients_compile_under_xla():
  keras.utils.set_random_seed(0)
  discriminator = R3GANDiscriminator(8, 1, widths=(8, 4), groups=(2, 1), blocks=1)
  for v in discriminator.trainable_variables:
    v.assign(v + 0.1)
  images = normal(3, 8, 8, 1, dtype="float32")

  def gradients():
    with tf.GradientTape() as outer:
      with tf.GradientTape() as inner:
        inner.watch(images)
        total = tf.reduce_sum(discriminator(images, training=True))
      penalty = tf.reduce_sum(tf.square(inner.gradient(total, images)))
    # No gradient reaches a bias: the slopes of the leaky ReLUs depend on it in steps.
    return [g for g in outer.gradient(penalty, discriminator.trainable_variables) if g is not None]

  for actual, expected in zip(tf.function(gradients, jit_compile=True)(), gradients(), strict=True):
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4)


def test_initial_weights():
  keras.utils.set_random_seed(0)
  generator = R3GANGenerator(16, latent_dim=50, num_classes=40, widths=(64, 64, 32), blocks=3)
  discriminator = R3GANDiscriminator(16, num_classes=40, widths=(64, 64, 32), blocks=3)
  assert len({v.numpy().tobytes() for n in (generator, discriminator)
              for v in n.trainable_variables if v.name == "kernel" and np.any(v)}) == 2 * 22
  gain = np.sqrt(2 / 1.04) * 9 ** -0.25
  for network in (generator, discriminator):
    blocks = [layer for layer in network.trunk if hasattr(layer, "mix")]
    assert len(blocks) == 9
    for block in blocks:
      width = block.reduce.kernel.shape[-1]
      assert np.std(block.expand.kernel) == pytest.approx(gain / np.sqrt(width), rel=0.06)
      assert np.std(block.mix.kernel) == pytest.approx(gain / np.sqrt(9 * 16), rel=0.06)
      assert not np.any(block.reduce.kernel)
      assert not np.any(block.expand.bias) and not np.any(block.mix.bias)
    # Between 64 and 32 channels, in one direction or the other.
    [change] = [layer.conv.kernel for layer in network.trunk if getattr(layer, "conv", None)]
    assert np.std(change) == pytest.approx(change.shape[0] ** -0.5, rel=0.06)
  assert np.std(generator.base) == pytest.approx(1, rel=0.1)
  assert np.std(generator.linear.kernel) == pytest.approx(100 ** -0.5, rel=0.1)
  assert np.std(generator.embedding.kernel) == pytest.approx(40 ** -0.5, rel=0.1)
  assert np.std(generator.to_image.kernel) == pytest.approx(32 ** -0.5, rel=0.3)
  assert np.std(discriminator.from_image.kernel) == pytest.approx(3 ** -0.5, rel=0.3)
  assert np.std(discriminator.base) == pytest.approx(1 / 4, rel=0.1)
  assert np.std(discriminator.linear.kernel) == pytest.approx(1 / 8, rel=0.1)
  assert np.std(discriminator.embedding.kernel) == pytest.approx(1 / np.sqrt(40 * 64), rel=0.1)


def test_mixed_precision_keeps_the_4x4_stage_in_float32():
  generator, discriminator = made(lambda: (
      R3GANGenerator(8, 1, 4, widths=(16, 8)), R3GANDiscriminator(8, 1, widths=(16, 8))),
      "mixed_bfloat16")
  for network in (generator, discriminator):
    dtypes = [layer.compute_dtype for layer in network.trunk]
    assert sorted(dtypes) == ["bfloat16"] * 3 + ["float32"] * 2
    assert {v.dtype for v in network.variables} == {"float32"}
  images = generator(normal(2, 4, dtype="float32"))
  assert images.dtype == discriminator(images).dtype == tf.float32
