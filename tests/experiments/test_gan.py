"""A GAN from parts: its updates are those of the formulas, under any strategy."""

import pathlib

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from experiments import gan
from models.gan.evaluation.sample_evaluator import samples
from models.gan.latents.distributions import uniform_latents
from replicator import random
from replicator.app import config
from replicator.checkpoints import checkpoint
from replicator.step import context
from tests.programs import logs

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"
TRAIN = ["train.steps = 5", "train.log_every = 1", "train.eval_every = 0",
         "train.checkpoint_every = 5", "train.precision = 'float64'"]
TINY = {
    "r3gan_stacked_digits": [
        "R3GANGenerator.widths = (8, 16)", "R3GANDiscriminator.widths = (8, 16)",
        "R3GANGenerator.groups = (2, 4)", "R3GANDiscriminator.groups = (2, 4)",
        "train.global_batch_size = 16"],
    "wgangp_digits": [
        "DCGANGenerator.width = 4", "DCGANDiscriminator.width = 4",
        "GAN.discriminator_updates = 2", "train.global_batch_size = 16"],
}
REPLICAS = {"one": ["Replicator.strategy = 'one_device'"],
            **{f"mirrored {n}": ["Replicator.strategy = 'mirrored'",
                                 f"Replicator.logical_cpus = {n}"] for n in (2, 4)}}

pytestmark = pytest.mark.usefixtures("restored", "without_curves")


def configure(name: str, *bindings: str) -> None:
  config.parse([str(CONFIGS / f"{name}.gin")], [*TINY[name], *bindings])


def train(workdir: pathlib.Path, name: str, *bindings: str) -> list[dict[str, float]]:
  """The rows of the log of a training in float64."""
  configure(name, *TRAIN, *bindings)
  gan.gan(str(workdir))
  return logs.rows(workdir)


@pytest.fixture(scope="module")
def one(tmp_path_factory):
  """The rows of the log, and the folder, of a training on one device."""
  done = {}

  def of(name: str) -> tuple[list[dict[str, float]], pathlib.Path]:
    if name not in done:
      workdir = tmp_path_factory.mktemp(name)
      done[name] = train(workdir, name, *REPLICAS["one"]), workdir
    return done[name]

  return of


@pytest.mark.slow
@pytest.mark.parametrize("name, divided", [
    *((name, REPLICAS[replicas]) for replicas in ("mirrored 2", "mirrored 4") for name in TINY),
    ("r3gan_stacked_digits", ["microbatch.n = 4"])])
def test_however_it_is_divided_the_training_is_the_same(name, divided, one, tmp_path):
  expected, reference = one(name)
  rows = train(tmp_path, name, *divided)
  assert len(rows) == 5
  for row, other in zip(rows, expected, strict=True):
    for scalar in ("discriminator", "generator", "penalty", "d_accuracy", "sample_variance"):
      assert row[scalar] == pytest.approx(other[scalar], rel=1e-9), scalar
  found, wanted = (checkpoint.read(folder / "checkpoints") for folder in (tmp_path, reference))
  for path, value in wanted.items():
    if value.dtype == np.float64:
      np.testing.assert_allclose(found[path], value, rtol=1e-7, atol=1e-9, err_msg=path)


# ---- The updates --------------------------------------------------------------------------------


class Line(keras.Model):
  """Images `[n, 2, 2, 1]` of codes, or scores `[n]` of images: one linear layer and a tanh."""

  def __init__(self, inputs: int, outputs: tuple[int, ...]):
    super().__init__()
    self.dense = keras.layers.Dense(int(np.prod(outputs, initial=1)))
    self.dense.build((None, inputs))
    self.outputs_shape = outputs
    self.built = True

  def call(self, inputs, labels=None, training=False):
    x = self.dense(tf.reshape(inputs, [inputs.shape[0], -1]))
    return tf.reshape(tf.tanh(x), [-1, *self.outputs_shape])


def line_gan(**options) -> gan.GAN:
  """A GAN of two linear networks, with plain gradient descent."""
  keras.utils.set_random_seed(0)
  return gan.GAN((2, 2, 1), 10, optimizer=lambda: keras.optimizers.SGD(0.5),
                 generator=lambda **_: Line(3, (2, 2, 1)), discriminator=lambda **_: Line(4, ()),
                 latent_dim=3, **options)


IMAGES = np.random.default_rng(0).integers(0, 256, [16, 2, 2, 1]).astype(np.uint8)
BATCH = {"image": IMAGES, "label": np.arange(16, dtype=np.int32) % 10}


def r1_by_hand(discriminator: Line, images: tf.Tensor) -> tf.Tensor:
  """mean |grad D|^2 / 2 of tanh(w x + b): |w|^2 (1 - D^2)^2."""
  [w] = tf.transpose(discriminator.dense.kernel.value)
  return tf.reduce_mean((1 - discriminator(images) ** 2) ** 2) * tf.reduce_sum(w ** 2) / 2


def relativistic_step_by_hand(model: gan.GAN) -> list[np.ndarray]:
  """One step of R3GAN with gamma 2 on the whole batch: (losses, weights afterwards)."""
  images = tf.constant(IMAGES / 127.5 - 1.0)
  for_discriminator, for_generator = images[0::2], images[1::2]
  with context.entered(tf.constant(0, tf.int64)):
    codes = [random.normal("z", [8, 3]) for _ in range(2)]
  losses = []
  for name, real, z in zip(("discriminator", "generator"), (for_discriminator, for_generator),
                           codes, strict=True):
    variables = [v.value for v in getattr(model, name).trainable_variables]
    with tf.GradientTape() as tape:
      fake = model.generator(z)
      difference = model.discriminator(real) - model.discriminator(fake)
      loss = tf.reduce_mean(tf.nn.softplus(-difference if name == "discriminator" else difference))
      if name == "discriminator":
        loss += 2.0 * sum(r1_by_hand(model.discriminator, x) for x in (real, fake))
    for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
      variable.assign_sub(0.5 * gradient)
    losses.append(loss.numpy())
  return [np.array(losses), *(v.numpy() for v in model.trainable_variables)]


@pytest.fixture
def float64():
  keras.config.set_floatx("float64")
  keras.config.set_dtype_policy("float64")


@pytest.fixture
def parts():
  return {"loss": gin.get_configurable("relativistic"),
          "penalties": [gin.get_configurable(name)(gamma=2.0) for name in ("r1", "r2")]}


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_relativistic_step_is_that_of_the_formulas(replicas, float64, parts):
  expected = relativistic_step_by_hand(line_gan(**parts))
  strategy = "mirrored" if replicas > 1 else "one_device"
  runner = replicator.Replicator(strategy, logical_cpus=replicas)
  with runner.scope():
    model = line_gan(**parts)
  outputs = runner.run(model, BATCH)
  losses = [np.mean([output[name] for output in outputs])
            for name in ("discriminator", "generator")]
  for found, wanted in zip([np.array(losses), *(v.numpy() for v in model.trainable_variables)],
                           expected, strict=True):
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


class Classifying(Line):
  """Scores `[n]` and logits `[n, 10]` of images."""

  def __init__(self):
    super().__init__(4, (11,))

  def call(self, inputs, labels=None, training=False):
    outputs = super().call(inputs)
    return outputs[:, 0], outputs[:, 1:]


@pytest.mark.parametrize("loss", ["hinge", "relativistic"])
def test_the_classes_of_samples_are_part_of_the_generators_loss(loss, float64):
  outputs = {}
  for weight in (0.0, 0.5):
    keras.utils.set_random_seed(0)
    model = gan.GAN((2, 2, 1), 10, optimizer=lambda: keras.optimizers.SGD(0.0),
                    generator=lambda **_: Line(3, (2, 2, 1)),
                    discriminator=lambda **_: Classifying(), latent_dim=3, conditional=True,
                    loss=gin.get_configurable(loss),
                    penalties=[gin.get_configurable("classification")()],
                    generator_classification=weight)
    [outputs[weight]] = replicator.Replicator().run(model, BATCH)
  is_relative = loss == "relativistic"
  size = 8 if is_relative else 16
  with context.entered(tf.constant(0, tf.int64)):
    labels = BATCH["label"][1::2]
    for _ in range(2):  # The discriminator's, then the generator's.
      z = random.normal("z", [size, 3])
      if not is_relative:
        labels = random.uniform("label", [size], 0, 10, tf.int32)
  logits = model.discriminator(model.generator(z))[1]
  expected = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
  found = outputs[0.5]["generator"] - outputs[0.0]["generator"]
  np.testing.assert_allclose(found, 0.5 * expected, rtol=1e-10)
  assert outputs[0.0]["penalty"] > 0


def test_the_settings_determine_the_updates_of_a_step():
  model = line_gan(discriminator_updates=3, generator_batch_ratio=2)
  replicator.Replicator().run(model, {name: value[:12] for name, value in BATCH.items()})
  updates = {name: int(optimizer.keras_optimizer.iterations.numpy())
             for name, optimizer in model.optimizers.items()}
  assert updates == {"discriminator": 3, "generator": 1}


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_encoder_regresses_the_codes_of_samples(replicas, float64):
  runner = replicator.Replicator("mirrored" if replicas > 1 else "one_device",
                                 logical_cpus=replicas)
  with runner.scope():
    model = line_gan(encoder=lambda **_: Line(4, (3,)))
  before = model.encoder.get_weights()
  outputs = runner.run(model, BATCH)
  reference = line_gan(encoder=lambda **_: Line(4, (3,)))
  reference.generator.set_weights(model.generator.get_weights())  # The encoder's update is last.
  with context.entered(tf.constant(0, tf.int64)), tf.GradientTape() as tape:
    z = [random.normal("z", [16, 3]) for _ in range(3)][-1]
    loss = tf.reduce_mean((reference.encoder(reference.generator(z)) - z) ** 2)
  gradients = tape.gradient(loss, reference.encoder.trainable_variables)
  np.testing.assert_allclose(np.mean([o["encoder"] for o in outputs]), loss, rtol=1e-12)
  for variable, start, gradient in zip(model.encoder.trainable_variables, before, gradients,
                                       strict=True):
    np.testing.assert_allclose(variable, start - 0.5 * gradient, rtol=1e-12)


def test_an_image_is_reconstructed_from_its_code():
  model = line_gan(encoder=lambda **_: Line(4, (3,)))
  images, labels = BATCH["image"][:2], BATCH["label"][:2]
  expected = model.generate(model.encoder(tf.cast(images, tf.float32) / 127.5 - 1), labels)
  np.testing.assert_allclose(model.reconstruct(images, labels), expected, rtol=1e-5)
  without = line_gan()
  with pytest.raises(replicator.UsageError, match=r"GAN\.encoder = None: without an encoder"):
    without.reconstruct(images, labels)


def test_samples_have_codes_of_the_distribution_that_is_trained():
  model = line_gan(latents=uniform_latents)
  seen = []
  model.generate = lambda z, labels: seen.append((z, labels)) or np.zeros([len(z), 2, 2, 1])
  assert samples(model, 600).shape == (600, 2, 2, 1)
  codes = np.concatenate([z for z, _ in seen])
  assert codes.shape == (600, 3) and np.abs(codes).max() <= 1 and np.abs(codes).max() > 0.99
  assert {int(label) for _, labels in seen for label in labels} == {0}
  samples(model, 600)
  np.testing.assert_array_equal(codes, np.concatenate([z for z, _ in seen[3:]]))


# ---- Mistakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("options, message", [
    ({"latent_dim": 0}, "GAN.latent_dim = 0: must be at least 1"),
    ({"discriminator_updates": 0}, "GAN.discriminator_updates = 0: must be at least 1"),
    ({"loss": gin.get_configurable("relativistic"), "generator_batch_ratio": 2},
     "GAN.generator_batch_ratio = 2: the loss compares each sample with an image"),
])
def test_settings_that_make_no_sense_are_refused(options, message):
  arguments = {"generator": lambda **_: None, "discriminator": lambda **_: None,
               "optimizer": lambda: None, **options}
  with pytest.raises(replicator.UsageError, match=message):
    gan.GAN((8, 8, 1), 10, **arguments)


@pytest.mark.parametrize("bindings, message", [
    (["gan.data = @Shapes", "Shapes.resolution = 48"],
     r"R3GANGenerator.resolution = 48: R3GAN has no networks of this size"),
    (["gamma/cosine.start = 100", "gamma/cosine.end = 50"],
     "cosine: start = 100 and end = 50: the schedule must not end before it begins"),
    (["SampleEvaluator.quality = @ModeCoverage", "gan.data = @Digits", "train.eval_every = 1"],
     "ModeCoverage counts the modes of @StackedDigits"),
    (["GAN.generator_classification = 0.1"],
     "classification: the discriminator gives scores alone; write GAN.discriminator = @ACGANDisc"),
])
def test_parts_that_do_not_fit_are_refused_in_one_line(bindings, message, tmp_path):
  with pytest.raises(replicator.UsageError, match=message):
    configure("r3gan_stacked_digits", *TRAIN, *bindings)
    gan.gan(str(tmp_path))
