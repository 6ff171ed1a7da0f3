"""All networks of GANs: shapes, precision, labels, gradients of any order, and mistakes."""

import functools

from models.gan.networks import biggan, biggan_deep, dcgan, sngan
from models.gan.networks.acgan import ACGANDiscriminator
from models.gan.networks.attention import with_attention
from models.gan.networks.bigbigan import BigBiGANDiscriminator, BigBiGANEncoder
from models.gan.networks.biggan import BigGANDiscriminator, BigGANGenerator
from models.gan.networks.biggan_deep import BigGANDeepDiscriminator, BigGANDeepGenerator
from models.gan.networks.cyclegan import CycleGANGenerator, PatchDiscriminator
from models.gan.networks.dcgan import DCGANDiscriminator, DCGANGenerator
from models.gan.networks.quantizers import FSQ, Codebook
from models.gan.networks.r3gan import R3GANDiscriminator, R3GANGenerator
from models.gan.networks.sngan import Encoder, SNGANDiscriminator, SNGANGenerator
from models.gan.networks.vqgan import VQGANAutoencoder
from replicator import UsageError
from tests.models.gan.networks import plain
from tests.models.gan.networks.plain import made, moved, normal

import keras
import numpy as np
import pytest
import tensorflow as tf

LABELS = tf.constant([2, 0, 1])
PAIRS = {
    "sngan": (SNGANGenerator, SNGANDiscriminator, {"width_multiplier": 1 / 16}),
    "dcgan": (DCGANGenerator, DCGANDiscriminator, {"base_channels": 4}),
    "biggan": (BigGANGenerator, BigGANDiscriminator, {"base_channels": 4}),
    "biggan_deep": (BigGANDeepGenerator, BigGANDeepDiscriminator, {"base_channels": 4}),
    "r3gan": (R3GANGenerator, R3GANDiscriminator, {})}
R3GAN_STAGES = {"widths": (12, 8, 4, 4, 4, 4, 4), "groups": (4, 2, 1, 1, 1, 1, 1)}


def pair(name: str, resolution: int, channels: int = 3, latent_dim: int = 6, classes: int = 3,
         policy: str = "float64", **options) -> tuple[keras.Model, keras.Model]:
  """A small generator and discriminator, always of the same weights."""
  make_generator, make_discriminator, small = PAIRS[name]
  if name == "r3gan":
    stages = resolution.bit_length() - 2
    small = {key: sizes[:stages] for key, sizes in R3GAN_STAGES.items()}
  options = {"num_classes": classes, **small, **options}
  return made(lambda: (make_generator(resolution, channels, latent_dim, **options),
                       make_discriminator(resolution, channels, **options)), policy)


@pytest.fixture(scope="module", params=PAIRS)
def networks(request):
  """A float64 generator and discriminator for 8 pixels."""
  return moved(pair(request.param, 8))


RESOLUTIONS = {"sngan": sngan.ARCHITECTURES, "dcgan": dcgan.ARCHITECTURES,
               "biggan": biggan.ARCHITECTURES, "biggan_deep": biggan_deep.UP,
               "r3gan": (8, 16, 32, 64, 128, 256)}


@pytest.mark.parametrize("name, resolution, classes", [
    *((name, 8, 0) for name in PAIRS),
    *(pytest.param(name, resolution, 4, marks=pytest.mark.slow)
      for name in PAIRS for resolution in RESOLUTIONS[name])])
def test_shapes_and_ranges(name, resolution, classes):
  latent_dim = 2 * len(biggan.ARCHITECTURES[resolution].up)  # BigGAN cuts it into chunks.
  networks = generator, discriminator = pair(name, resolution, 1, latent_dim, classes, "float32")
  variables = [len(network.variables) for network in networks]
  labels = tf.constant([0, 3]) if classes else None
  images = generator(tf.cast(normal(2, latent_dim), tf.float32), labels, training=True)
  assert images.shape == (2, resolution, resolution, 1) and images.dtype == tf.float32
  assert name == "r3gan" or np.abs(images).max() <= 1
  assert discriminator(images, labels, training=True).shape == (2,)
  assert discriminator.features(images).shape == (2, discriminator.num_features)
  # The constructor makes all variables; no call makes one.
  assert [len(network.variables) for network in networks] == variables


@pytest.mark.parametrize("name", PAIRS)
def test_half_precision_changes_results_by_rounding(name):
  z, labels = tf.cast(normal(8, 6), tf.float32), tf.constant([0, 1] * 4)
  images = tf.cast(tf.tanh(normal(8, 8, 8, 3)), tf.float32)
  results = []
  for policy in ("float32", "mixed_bfloat16"):
    generator, discriminator = moved(pair(name, 8, policy=policy))
    assert {v.dtype for n in (generator, discriminator) for v in n.variables} == {"float32"}
    results.append([generator(z, labels, training=True),
                    discriminator(images, labels, training=True)])
  for expected, found in zip(*results, strict=True):
    assert found.dtype == tf.float32
    np.testing.assert_allclose(found, expected, atol=0.2 * np.abs(expected).max())


@pytest.mark.parametrize("make", [SNGANDiscriminator, BigGANDiscriminator, BigGANDeepDiscriminator,
                                  pytest.param(BigBiGANEncoder, marks=pytest.mark.slow)],
                         ids=lambda make: make.__name__)
def test_sums_over_positions_are_not_taken_in_half_precision(make):
  channels = ({"width_multiplier": 1 / 16} if make is SNGANDiscriminator
              else {"base_channels": 4})
  [network] = made(lambda: [make(16, 3, **channels)], "mixed_bfloat16")
  features = network.features(tf.cast(tf.tanh(normal(8, 16, 16, 3)), tf.float32))
  # A sum of rounded numbers has more digits than they have.
  assert np.any(features != tf.cast(tf.cast(features, tf.bfloat16), tf.float32))


def test_gradients_reach_every_variable(networks):
  generator, discriminator = networks
  plain.check_gradients(networks, lambda: tf.reduce_mean(tf.square(
      discriminator(generator(normal(3, 6), LABELS, training=True), LABELS, training=True))))


@pytest.mark.parametrize("name", PAIRS)
def test_a_gradient_penalty_has_the_derivatives_of_finite_differences(name):
  # Small, so that no difference crosses the kink of a leaky ReLU, where the penalty jumps.
  small = {"r3gan": {"widths": (8, 4), "groups": (2, 1), "blocks": 1},
           "biggan": {"attention": 4}}.get(name, {})
  options = {"num_classes": 3, **PAIRS[name][2], **small}
  [discriminator] = moved(made(lambda: [PAIRS[name][1](8, 2, **options)]), 0.2)
  images, variables = normal(3, 8, 8, 2), discriminator.trainable_variables
  squashed = tf.tanh if name == "dcgan" else tf.identity  # So that its batch statistics matter.

  def penalty():
    with tf.GradientTape() as tape:
      tape.watch(images)
      scores = discriminator(images, LABELS, training=name == "dcgan")
      total = tf.reduce_sum(squashed(scores))
    return tf.reduce_mean(tf.reduce_sum(tf.square(tape.gradient(total, images)), [1, 2, 3]))

  np.testing.assert_allclose(*plain.slopes([v.value for v in variables], penalty), rtol=1e-5)


def test_a_generator_mixes_classes(networks):
  generator, _ = networks
  z = tf.repeat(normal(1, 6), 3, axis=0)
  of_labels = generator(z, tf.constant([0, 2, 2]))
  weights = tf.constant([[1.0, 0, 0], [0.5, 0, 0.5], [0, 0, 1.0]], tf.float64)
  of_weights = generator(z, weights)
  np.testing.assert_allclose(of_weights[::2], of_labels[::2], atol=1e-12)
  assert np.abs(of_labels[0] - of_labels[2]).max() > 1e-4
  assert np.abs(of_weights[1] - of_labels[0]).max() > 1e-5
  assert np.abs(of_weights[1] - of_labels[2]).max() > 1e-5


def test_a_training_call_moves_every_statistic_and_another_none(networks):
  generator, discriminator = networks
  plain.check_statistics(networks, lambda training: (
      generator(normal(3, 6), LABELS, training=training),
      discriminator(tf.tanh(normal(3, 8, 8, 3)), LABELS, training=training)))


def test_calls_without_labels_and_of_other_images_are_refused(networks):
  generator, discriminator = networks
  for call, message in [
      (lambda: generator(normal(3, 6)),
       rf"{type(generator).__name__}\.num_classes = 3 .* given no labels"),
      (lambda: discriminator(normal(3, 8, 8, 3)),
       rf"{type(discriminator).__name__}\.num_classes = 3 .* given no labels"),
      (lambda: discriminator(normal(3, 16, 16, 3), LABELS), "8 x 8 x 3 but was given 16 x 16 x 3")]:
    with pytest.raises(UsageError, match=message):
      call()


@pytest.mark.parametrize("make", [
    *(make for networks in PAIRS.values() for make in networks[:2]), Encoder, BigBiGANEncoder],
    ids=lambda make: make.__name__)
def test_an_unknown_resolution_is_refused(make):
  for resolution in (28, 4, 0, 1024):
    message = rf"^{make.__name__}\.resolution = {resolution}: .* one of 8, 16, 32, 64"
    with pytest.raises(UsageError, match=message):
      make(resolution)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # In Keras.
@pytest.mark.parametrize("make", [
    *(functools.partial(pair, name, 8, policy="float32") for name in PAIRS),
    lambda: [Encoder(8, 1, 6, 1 / 16)], lambda: [BigBiGANEncoder(8, 1, 6, 4, 5, 1)],
    lambda: [BigBiGANDiscriminator(8, 1, 4, IMAGES_OF_BIGBIGAN, 2, 1)],
    lambda: [ACGANDiscriminator(8, 1, 3, lambda resolution, channels, num_classes: (
        DCGANDiscriminator(resolution, channels, num_classes, 4)))],
    lambda: [CycleGANGenerator(8, 1, 4, 1)], lambda: [PatchDiscriminator(16, 1, 4)],
    lambda: [VQGANAutoencoder(8, 1, 4, 8, 1, 1)]],
    ids=[*PAIRS, "encoder", "bigbigan encoder", "bigbigan", "acgan", "cyclegan", "patches",
         "vqgan"])
def test_keras_writes_and_loads_all_weights(make, tmp_path):
  for network, again in zip(make(), make(), strict=True):
    for number, variable in enumerate(network.variables):
      numbers = np.arange(np.prod(variable.shape, dtype=int)) + number
      variable.assign(np.reshape(numbers, variable.shape).astype(variable.dtype))
    network.save_weights(tmp_path / "network.weights.h5")
    again.load_weights(tmp_path / "network.weights.h5")
    for found, expected in zip(again.variables, network.variables, strict=True):
      np.testing.assert_array_equal(found, expected)


ZEROS, LATENTS = np.zeros([2, 8, 8, 1]), np.zeros([2, 3])
IMAGES_OF_BIGBIGAN = functools.partial(BigGANDiscriminator, base_channels=2)


@pytest.mark.parametrize("make, message", [
    *((lambda make=make: make(64, width_multiplier=0.001),
        rf"^{make.__name__}\.width_multiplier = 0\.001")
      for make in (SNGANGenerator, SNGANDiscriminator, Encoder)),
    *((lambda make=make: make(8, base_channels=0), f"^{make.__name__}.base_channels = 0: ")
      for make in (DCGANGenerator, DCGANDiscriminator)),
    (lambda: SNGANDiscriminator(8, 1, width_multiplier=1 / 16, latent_dim=4)(ZEROS),
     "latent_dim is 4, but it was given no latents"),
    (lambda: SNGANDiscriminator(8, 1, width_multiplier=1 / 16)(ZEROS, latents=LATENTS),
     "latent_dim is 0, but it was given latents"),
    (lambda: Encoder(16, 1, width_multiplier=1 / 16)(ZEROS),
     "images of 16 x 16 x 1 but was given 8 x 8 x 1"),
    *((lambda classes=classes: ACGANDiscriminator(8, 1, classes, DCGANDiscriminator),
       f"num_classes = {classes}: .*; set GAN.conditional = True") for classes in (0, 1)),
    (lambda: with_attention("D", 32, [], [16, 8, 4]), r"D\.attention = 32: .* have 4, 8, 16 pix"),
    (lambda: BigGANGenerator(32, latent_dim=30), "latent_dim = 30: .*4 equal chunks"),
    (lambda: BigGANGenerator(32, latent_dim=80, attention=64), "attention = 64: .*8, 16, 32 pixel"),
    (lambda: BigGANDiscriminator(8, attention=8), "attention = 8: .*have 4 pixels"),
    (lambda: BigBiGANEncoder(8, layers=0), "BigBiGANEncoder.layers = 0: must be at least 1"),
    (lambda: BigBiGANDiscriminator(8, units=0), "BigBiGANDiscriminator.units = 0: must be"),
    (lambda: BigBiGANEncoder(16, 1, 2, 1, 2, 1)(ZEROS), "16 x 16 x 1 but was given"),
    (lambda: BigBiGANDiscriminator(8, 1, 4, IMAGES_OF_BIGBIGAN, 2, 1)(ZEROS, LATENTS),
     r"built for latents of length 4 but was given \[2, 3\]"),
    (lambda: CycleGANGenerator(10),
     "CycleGANGenerator.downsamplings = 2: 10 pixels .*; use fewer"),
    (lambda: CycleGANGenerator(8, blocks=0), "CycleGANGenerator.blocks = 0: must be at least 1"),
    (lambda: PatchDiscriminator(8, base_channels=2),
     "PatchDiscriminator.layers = 3: 8 pixels .* fewer"),
    (lambda: VQGANAutoencoder(6, 1, 4, 2, downsamplings=2),
     "Autoencoder.downsamplings = 2: 6 pixels .* f"),
    (lambda: VQGANAutoencoder(6, 1, 4, 2, downsamplings=1, blocks=0),
     "Autoencoder.blocks = 0: must be"),
    (lambda: FSQ((4, 1)), r"FSQ.levels = \(4, 1\): .* at least 2, such as \(8, 6, 5\)"),
    (lambda: Codebook(decay=1.0), "Codebook.decay = 1.0: must be at least 0 and below 1"),
    (lambda: Codebook(dim=0), "Codebook.dim = 0: must be at least 1"),
    *(row for make in (R3GANGenerator, R3GANDiscriminator) for row in [
        (lambda make=make: make(32, widths=(64, 64)),
         rf"^{make.__name__}\.widths = \(64, 64\) are for 8 pixels, .*: write 4 numbers"),
        *((lambda make=make, groups=groups: make(8, widths=(4, 4), groups=groups),
           rf"^{make.__name__}\.groups = .* do not fit widths = \(4, 4\)")
          for groups in ((2,), (2, 3))),
        (lambda make=make: make(8, widths=(4, 4), groups=(1, 1), blocks=0),
         rf"^{make.__name__}\.blocks = 0")]),
])
def test_what_does_not_fit_is_refused(make, message):
  with pytest.raises(UsageError, match=message):
    make()
