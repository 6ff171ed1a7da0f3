"""The SN-GAN networks: sizes, the functions that they compute, and calls that they refuse."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from models.gan.networks.sngan import ARCHITECTURES, Encoder, SNGANDiscriminator, SNGANGenerator
from replicator.errors import UsageError
from tests.models.gan.networks.plain import normalized, pooled, upsampled


@pytest.fixture
def float64():
  keras.config.set_dtype_policy("float64")
  yield
  keras.config.set_dtype_policy("float32")


@pytest.fixture
def mixed_bfloat16():
  keras.config.set_dtype_policy("mixed_bfloat16")
  yield
  keras.config.set_dtype_policy("float32")


def normal(*shape, dtype="float32"):
  return tf.constant(np.random.default_rng(0).normal(size=shape), dtype)


def count(network):
  return sum(int(np.prod(v.shape)) for v in network.trainable_variables)


def randomize(network):
  """Moves biases and normalization away from their zeros and ones."""
  random = np.random.default_rng(1)
  for v in network.trainable_variables:
    v.assign(v + 0.1 * random.normal(size=v.shape))


def test_published_sizes():
  # The arithmetic of the published 32 pixel networks, unconditional:
  # G: linear 128 -> 4x4x256, three blocks of two 3x3 and one 1x1 convolution 256 -> 256 and
  # two batch norms, a batch norm, a 3x3 convolution 256 -> 3.
  convolutions = 2 * (9 * 256 * 256 + 256) + 256 * 256 + 256
  expected = 129 * 4096 + 3 * (convolutions + 2 * 512) + 512 + 9 * 256 * 3 + 3
  assert count(SNGANGenerator(32)) == expected == 4_276_739
  # D: 3 -> 128 with shortcut, 128 -> 128 with shortcut, two without, a linear layer.
  first = (9 * 3 * 128 + 128) + (9 * 128 * 128 + 128) + (3 * 128 + 128)
  others = 3 * 2 * (9 * 128 * 128 + 128) + (128 * 128 + 128)
  assert count(SNGANDiscriminator(32)) == first + others + 128 == 1_053_824


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("resolution", list(ARCHITECTURES))
def test_shapes_and_ranges(resolution, channels):
  z, labels = normal(2, 7), tf.constant([0, 3])
  generator = SNGANGenerator(resolution, channels, latent_dim=7, width=1 / 16, num_classes=4)
  discriminator = SNGANDiscriminator(resolution, channels, width=1 / 16, num_classes=4, code_dim=7)
  encoder = Encoder(resolution, channels, latent_dim=7, width=1 / 16)
  networks = generator, discriminator, encoder
  variables = [len(network.variables) for network in networks]
  images = generator(z, labels, training=True)
  assert images.shape == (2, resolution, resolution, channels)
  assert np.abs(images).max() <= 1
  assert discriminator(images, labels, z, training=True).shape == (2,)
  assert encoder(images, training=True).shape == (2, 7)
  # The constructor makes all variables; no call makes one.
  assert [len(network.variables) for network in networks] == variables


@pytest.mark.parametrize("resolution", [8, 64, 128])
def test_gradients_reach_every_variable(resolution):
  keras.utils.set_random_seed(0)  # With four features, some seeds leave no ReLU active.
  z, labels = normal(3, 5), tf.constant([0, 1, 1])
  generator = SNGANGenerator(resolution, latent_dim=5, width=1 / 32, num_classes=2)
  discriminator = SNGANDiscriminator(resolution, width=1 / 32, num_classes=2, code_dim=5)
  encoder = Encoder(resolution, latent_dim=5, width=1 / 32)
  with tf.GradientTape() as tape:
    images = generator(z, labels, training=True)
    scores = discriminator(images, labels, encoder(images, training=True), training=True)
    loss = tf.reduce_mean(tf.square(scores))
  for network in (generator, discriminator, encoder):
    assert network.trainable_variables
  variables = [v for n in (generator, discriminator, encoder) for v in n.trainable_variables]
  for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
    assert gradient is not None and np.isfinite(gradient).all(), variable.path
    # Every kernel has an effect. A bias before batch normalization has none.
    assert variable.name == "bias" or np.any(gradient), variable.path


# The unfolded networks as in the papers: resampling at full size around plain 3x3 convolutions,
# shortcuts at full size, exact singular values.

def conv(x, layer, kernel=None):
  return tf.nn.conv2d(x, layer.kernel.value if kernel is None else kernel, 1, "SAME") + layer.bias


def batch_norm(x, layer):
  mean, variance = tf.nn.moments(x, [0, 1, 2])
  return (x - mean) / tf.sqrt(variance + 1e-5) * layer.gamma + layer.beta


def plain_generator(generator, z):
  x = tf.reshape(z @ generator.linear.kernel.value + generator.linear.bias, [-1, 4, 4, 16])
  for block in generator.blocks:
    h = conv(upsampled(tf.nn.relu(batch_norm(x, block.norm1))), block.conv1)
    h = conv(tf.nn.relu(batch_norm(h, block.norm2)), block.conv2)
    x = h + conv(upsampled(x), block.shortcut)
  return tf.tanh(conv(tf.nn.relu(batch_norm(x, generator.norm)), generator.to_image))


def plain_discriminator(discriminator, images, labels, codes):
  spectral_conv = lambda x, layer: conv(x, layer.layer, normalized(layer))
  x = images
  for i, block in enumerate(discriminator.blocks):
    h = x if i == 0 else tf.nn.relu(x)
    first, second = [layer for layer in block.residual if hasattr(layer, "layer")]
    h = spectral_conv(tf.nn.relu(spectral_conv(h, first)), second)
    shortcut = x if block.shortcut is None else spectral_conv(x, block.shortcut)
    halves = i < 2
    x = (pooled(h) if halves else h) + (pooled(shortcut) if halves else shortcut)
  h = tf.reduce_sum(tf.nn.relu(x), [1, 2])
  score = tf.linalg.matvec(h, normalized(discriminator.linear)[:, 0])
  score += tf.reduce_sum(tf.gather(normalized(discriminator.embedding), labels) * h, 1)
  pair = h @ normalized(discriminator.joint_features) + (
      codes @ normalized(discriminator.joint_code) + discriminator.joint_code.layer.bias)
  pair = tf.nn.relu(pair) @ normalized(discriminator.joint_hidden)
  pair = tf.nn.relu(pair + discriminator.joint_hidden.layer.bias)
  return score + tf.linalg.matvec(pair, normalized(discriminator.joint_score)[:, 0])


def test_generator_equals_the_unfolded_one(float64):
  generator = SNGANGenerator(32, latent_dim=6, width=1 / 16)
  randomize(generator)
  z = normal(3, 6, dtype="float64")
  np.testing.assert_allclose(
      generator(z, training=True), plain_generator(generator, z), atol=1e-11)


def test_discriminator_equals_the_unfolded_one(float64):
  discriminator = SNGANDiscriminator(32, width=1 / 16, num_classes=3, code_dim=5)
  randomize(discriminator)
  images = tf.tanh(normal(3, 32, 32, 3, dtype="float64"))
  labels, codes = tf.constant([2, 0, 1]), normal(3, 5, dtype="float64")
  expected = plain_discriminator(discriminator, images, labels, codes)
  np.testing.assert_allclose(discriminator(images, labels, codes), expected, rtol=1e-11)


def test_initial_weights_are_glorot_uniform_and_all_different():
  seen = []
  for network in (SNGANGenerator(32, width=0.5), SNGANDiscriminator(32, width=0.5),
                  Encoder(32, width=0.5)):
    for variable in network.trainable_variables:
      if variable.name != "kernel":
        continue
      kernel = variable.numpy()
      area = int(np.prod(kernel.shape[:-2]))
      gain_squared = 2 if area == 9 and kernel.shape[-1] != 3 else 1
      limit = np.sqrt(6 * gain_squared / (area * sum(kernel.shape[-2:])))
      assert 0.9 * limit < np.abs(kernel).max() <= limit * (1 + 1e-6), variable.path
      assert not any(np.array_equal(kernel, other) for other in seen), variable.path
      seen.append(kernel)


def test_class_conditional_batch_norm_scales_by_class():
  generator = SNGANGenerator(8, latent_dim=4, width=1 / 16, num_classes=2)
  z = tf.repeat(normal(1, 4), 2, axis=0)
  same = generator(z, tf.constant([0, 1]))
  np.testing.assert_allclose(same[0], same[1], rtol=1e-4, atol=1e-6)  # All classes start alike.
  generator.blocks[0].norm1.gamma.assign([[1.0] * 16, [2.0] * 16])
  different = generator(z, tf.constant([0, 1]))
  np.testing.assert_array_equal(different[0], same[0])
  assert np.abs(different[1] - same[1]).max() > 1e-4
  swapped = generator(z, tf.constant([1, 0]))
  np.testing.assert_allclose(swapped, different[::-1], atol=1e-6)


@pytest.mark.parametrize("policy, tolerance", [("float64", 0.0), ("mixed_bfloat16", 0.2)])
def test_precisions(policy, tolerance, request):
  z, labels = normal(8, 6), tf.constant([0, 1] * 4)
  images = tf.tanh(normal(8, 16, 16, 3))

  def outputs():
    networks = (SNGANGenerator(16, latent_dim=6, width=1 / 8, num_classes=2),
                SNGANDiscriminator(16, width=1 / 8, num_classes=2, code_dim=6),
                Encoder(16, latent_dim=6, width=1 / 8))
    for network in networks:
      randomize(network)
    generator, discriminator, encoder = networks
    dtypes = {v.dtype for network in networks for v in network.variables}
    return dtypes, [generator(z, labels, training=True), discriminator(images, labels, z),
                    encoder(images, training=True)]

  keras.utils.set_random_seed(0)
  _, expected = outputs()
  request.getfixturevalue(policy)
  keras.utils.set_random_seed(0)
  dtypes, actual = outputs()
  dtype = "float64" if policy == "float64" else "float32"
  assert dtypes == {dtype}
  for a, e in zip(actual, expected, strict=True):
    assert a.dtype == dtype
    if tolerance:
      np.testing.assert_allclose(a, e, atol=tolerance * np.abs(e).max())


def test_construction_and_calls_under_a_strategy():
  runner = replicator.Replicator("mirrored", logical_cpus=2)
  with runner.scope():
    generator = SNGANGenerator(8, latent_dim=4, width=1 / 16, num_classes=2)
    discriminator = SNGANDiscriminator(8, width=1 / 16, num_classes=2, code_dim=4)
    encoder = Encoder(8, latent_dim=4, width=1 / 16)

  def step(batch):
    images = generator(batch["z"], batch["label"], training=True)
    codes = encoder(images, training=True)
    return discriminator(images, batch["label"], codes, training=True)

  outputs = runner.run(step, {"z": normal(4, 4).numpy(), "label": np.array([0, 1, 1, 0])})
  assert [scores.shape for scores in outputs] == [(2,), (2,)]


def test_an_unknown_resolution_is_refused():
  with pytest.raises(UsageError, match=r"Encoder.resolution = 28: .*8, 16, 32, 64, 128"):
    Encoder(28)


@pytest.mark.parametrize("network", [SNGANGenerator, SNGANDiscriminator, Encoder])
def test_a_width_that_leaves_no_channel_is_refused(network):
  with pytest.raises(UsageError, match=r"width = 0\.001"):
    network(64, width=0.001)


def test_calls_with_wrong_inputs_are_refused():
  images, z = normal(2, 8, 8, 3), normal(2, 4)
  with pytest.raises(UsageError, match="no labels"):
    SNGANGenerator(8, latent_dim=4, width=1 / 16, num_classes=2)(z)
  with pytest.raises(UsageError, match="no labels"):
    SNGANDiscriminator(8, width=1 / 16, num_classes=2)(images)
  with pytest.raises(UsageError, match=r"code_dim is 4, but it was given no codes"):
    SNGANDiscriminator(8, width=1 / 16, code_dim=4)(images)
  with pytest.raises(UsageError, match=r"code_dim is 0, but it was given codes"):
    SNGANDiscriminator(8, width=1 / 16)(images, codes=z)
  for network in (SNGANDiscriminator(16, width=1 / 16), Encoder(16, width=1 / 16)):
    with pytest.raises(UsageError, match="images of 16 x 16 x 3 but was given 8 x 8 x 3"):
      network(images)
