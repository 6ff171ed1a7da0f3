"""Every GAN: what a step logs and samples, GANs from parts, LOGAN, and what does not fit."""

import json

import replicator
from experiments.gan import GAN
from experiments.logan import LOGAN
from models.gan.latents.distributions import (
  normal_latents,
  truncated_normal_latents,
  uniform_latents,
)
from models.gan.networks.building import check_images
from models.vision.images.image_source import InMemoryImages
from replicator import random
from replicator.step import context
from replicator.training.workdir.reader import TIMES
from tests.experiments.line import BATCH, Line, line_gan, one_step
from tests.experiments.tiny_gans import GANS, MIRRORED, build, train
from tests.programs.capabilities import eagerly
from tests.programs.logs import rows

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf


@pytest.mark.slow
def test_float32_agrees_over_the_first_steps(tmp_path):
  # Later, GAN dynamics amplify the rounding errors, so equality is proved in float64.
  with eagerly():
    train(tmp_path / "one", "gan", "train.steps = 5")
  train(tmp_path / "two", "gan", "train.steps = 5", *MIRRORED[2])
  for row, other in zip(rows(tmp_path / "two"), rows(tmp_path / "one"), strict=True):
    assert row == pytest.approx(other, rel=1e-4)


@pytest.mark.slow
def test_step_compiles_under_xla_with_static_shapes():
  # A TPU runs this. The compiler knows the batch size, so no dimension is dynamic.
  gan = build("bigbigan", "BigBiGAN.discriminator_updates = 1", "BigBiGANDiscriminator.layers = 1",
              "BigBiGANEncoder.layers = 1")

  @tf.function(jit_compile=True, autograph=False)
  def step(number, batch):
    with context.entered(number, xla=True):
      return gan(batch)

  batch = {"image": tf.zeros([16, 8, 8, 1], tf.uint8), "label": tf.zeros([16], tf.int32)}
  graph = step.get_concrete_function(tf.constant(0, tf.int64), batch).graph
  dynamic = [o for op in graph.get_operations() if op.type in ("Conv2D", "MatMul")
             for o in op.outputs if not o.shape.is_fully_defined()]
  assert not dynamic
  assert all(np.isfinite(loss) for loss in step(tf.constant(0, tf.int64), batch).values())


@pytest.mark.slow
def test_labels_with_gaps_train_as_those_without(tmp_path):
  images = np.random.default_rng(0).integers(0, 256, [40, 8, 8, 1], np.uint8)
  labels = np.minimum(np.arange(40) % 6, 2)  # Of 40 examples, 7, 7 and 26 are of a class.
  for name, numbers in (("gaps", (0, 5, 11)), ("plain", (0, 1, 2))):
    np.savez(tmp_path / f"{name}.npz", images=images, labels=np.array(numbers)[labels])
    with eagerly():
      train(tmp_path / name, "gan", "train.steps = 2", "train_gan.data = @ImageArrays",
            f"ImageArrays.path = '{tmp_path / name}.npz'")
    gin.clear_config()
    facts = json.loads((tmp_path / name / "run.json").read_text())
    assert facts["data"] == {"classes": dict(zip(map(str, numbers), (7, 7, 26), strict=True))}
  timeless = [[{key: value for key, value in row.items() if key not in TIMES}
               for row in rows(tmp_path / name)] for name in ("gaps", "plain")]
  assert timeless[0] == timeless[1]


# ---- One step -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GANS)
def test_the_last_update_is_logged_and_samples_are_of_averaged_weights(name):
  gan = build(name)
  images = np.random.default_rng(0).integers(0, 256, [16, *GANS[name].image_shape], np.uint8)
  scalars = one_step(gan, {"image": tf.constant(images), "label": tf.zeros([16], tf.int32)})
  # It takes the second half of the batch; R3GAN's one update takes the first half.
  half = images[0 if name == "r3gan" else 1::2]
  np.testing.assert_allclose(scalars["data_variance"], np.mean(np.var(half / 127.5 - 1.0, axis=0)),
                             rtol=1e-5)
  assert 0 <= scalars["d_accuracy"] <= 1 and scalars["sample_variance"] > 0
  updates = {name: int(optimizer.keras_optimizer.iterations.numpy())
             for name, optimizer in gan.optimizers.items()}
  assert updates == {"discriminator": 1 if name == "r3gan" else 2, "generator": 1,
                     **({"encoder": 1} if hasattr(gan, "encoder") and gan.encoder else {})}
  z, labels = tf.random.normal([2, gan.latent_dim]), tf.constant([0, 1])
  before, raw = gan.generate(z, labels), gan.generator(z, labels)
  for variable in gan.generator.trainable_variables:
    variable.assign_add(tf.random.normal(variable.shape))
  assert np.abs(gan.generator(z, labels) - raw).max() > 0.01
  np.testing.assert_array_equal(gan.generate(z, labels), before)


@pytest.mark.parametrize("name", GANS)
def test_a_number_below_one_is_refused(name):
  step = GANS[name].step.__name__
  names = {"latent_dim"} | ({"discriminator_updates"} if name != "r3gan" else set())
  names |= {"generator_batch_ratio"} if name in ("sngan", "bigan", "gan") else set()
  for parameter in names:
    with pytest.raises(replicator.UsageError, match=f"{step}.{parameter} = 0: must be at least 1"):
      build(name, f"{step}.{parameter} = 0")


@pytest.mark.parametrize("height, width", [(16, 8), (8, 16)])
def test_images_that_are_no_squares_are_refused_with_what_to_do(height, width, tmp_path):
  images = np.zeros([3, height, width, 3], np.uint8)
  for gan in GANS.values():
    with pytest.raises(replicator.UsageError) as error:
      gan.main(str(tmp_path), data=lambda: InMemoryImages(images, np.zeros(3), ("all",)))
    assert str(error.value).splitlines()[0] == (
        f"InMemoryImages: has images of {height} x {width} pixels, but a GAN needs square ones; "
        "crop them: replicator convert DATA OUT --shards=1 --resolution=8, and set "
        "TFRecords.path = 'OUT'")
  with pytest.raises(replicator.UsageError) as error:
    check_images("Net", (8, 8, 3), images)
  assert str(error.value) == (f"Net is built for images of 8 x 8 x 3 but was given {height} x "
                              f"{width} x 3: crop them to squares")


# ---- From parts ---------------------------------------------------------------------------------


class Classifying(Line):
  """Scores `[n]` and logits `[n, 10]` of images."""

  def __init__(self):
    super().__init__(4, (11,))

  def call(self, inputs, labels=None, training=False):
    outputs = super().call(inputs)
    return outputs[:, 0], outputs[:, 1:]


def step_of(model: GAN) -> dict[str, tf.Tensor]:
  """The scalars of one step."""
  return one_step(model, {name: tf.constant(value) for name, value in BATCH.items()})


def test_the_classes_of_samples_are_part_of_the_generators_loss(float64):
  outputs = {}
  for weight in (0.0, 0.5):
    model = line_gan(GAN, Classifying, rate=0.0, conditional=True, generator_classification=weight,
                     penalties=[gin.get_configurable("classification")()])
    outputs[weight] = step_of(model)
  with context.entered(tf.constant(0, tf.int64)):
    for _ in range(2):  # The discriminator's, then the generator's.
      z = random.normal("z", [16, 3])
      labels = random.uniform("label", [16], 0, 10, tf.int32)
  logits = model.discriminator(model.generator(z))[1]
  expected = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
  found = outputs[0.5]["loss/generator"] - outputs[0.0]["loss/generator"]
  np.testing.assert_allclose(found, 0.5 * expected, rtol=1e-10)
  assert outputs[0.0]["penalty"] > 0


def test_an_image_is_reconstructed_from_its_code():
  model = line_gan(GAN, encoder=lambda **_: Line(4, (3,)))
  images, labels = BATCH["image"][:2], BATCH["label"][:2]
  expected = model.generate(model.encoder(tf.cast(images, tf.float32) / 127.5 - 1), labels)
  np.testing.assert_allclose(model.reconstruct(images, labels), expected, rtol=1e-5)
  without = line_gan(GAN)
  gin.bind_parameter("encoder/wrap_optimizer.ema_decay", 0.0)  # Averages of one, the initial ones.
  averaging = line_gan(GAN, encoder=lambda **_: Line(4, (3,)))
  averaging.encoder.set_weights([1 - weight for weight in averaging.encoder.get_weights()])
  np.testing.assert_allclose(averaging.reconstruct(images, labels), expected, rtol=1e-5)
  with pytest.raises(replicator.UsageError, match=r"GAN\.encoder = None: .* needs an encoder"):
    without.reconstruct(images, labels)


@pytest.mark.parametrize("latents", [normal_latents, truncated_normal_latents])
def test_codes_that_would_be_clipped_where_they_do_not_move_are_refused(latents):
  with pytest.raises(replicator.UsageError, match=(
      rf"LOGAN.latents = @{latents.__name__}: .* must be uniform there; set LOGAN.lat")):
    line_gan(LOGAN, latents=latents)


def test_a_network_with_wrong_second_derivatives_moves_no_codes():
  critic = lambda: keras.Sequential([keras.Input([2, 2, 1]), keras.layers.LayerNormalization()])
  with pytest.raises(replicator.UsageError, match="which LatentOptimization needs; use "):
    line_gan(LOGAN, latents=uniform_latents, discriminator=critic)
