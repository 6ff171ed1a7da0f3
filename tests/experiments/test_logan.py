"""LOGAN: its update is that of the formulas, all its steps run, and no strategy changes it."""

import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from experiments import logan
from models.gan.latents.distributions import uniform_latents
from models.gan.latents.optimization import LatentOptimization
from replicator import UsageError, random
from replicator.app import config
from replicator.step import context
from tests.programs.logs import rows

ROOT = pathlib.Path(__file__).parents[2]
TINY = ["SNGANGenerator.width = 0.0625", "SNGANDiscriminator.width = 0.125", "LOGAN.latent_dim = 4",
        "LOGAN.discriminator_updates = 1", "train.global_batch_size = 16", "train.steps = 3",
        "train.log_every = 1", "train.eval_every = 0", "train.checkpoint_every = 0",
        "train.precision = 'float64'"]
SCALARS = ("discriminator", "generator", "latent_cost", "d_accuracy", "sample_variance",
           "data_variance")
IMAGES = np.random.default_rng(0).integers(0, 256, [8, 2, 2, 1]).astype(np.uint8)
BATCH = {"image": IMAGES, "label": np.zeros(8, np.int32)}

pytestmark = pytest.mark.usefixtures("restored", "without_curves")


def train(workdir: pathlib.Path, *bindings: str) -> list[list[float]]:
  config.parse([str(ROOT / "configs" / "logan_digits.gin")], [*TINY, *bindings])
  logan.logan(str(workdir))
  return [[row[name] for name in SCALARS] for row in rows(workdir)]


@pytest.mark.slow
@pytest.mark.parametrize("bindings", [
    ["Replicator.strategy = 'mirrored'", "Replicator.logical_cpus = 2"],
    ["Replicator.strategy = 'mirrored'", "Replicator.logical_cpus = 4"]], ids=["2", "4"])
def test_replicas_do_not_change_the_training(bindings, tmp_path):
  steps = "LatentOptimization.steps = 2"
  expected = train(tmp_path / "1", steps)
  found = train(tmp_path / "N", steps, *bindings)
  assert len(expected) == 3 and min(row[2] for row in expected) > 0
  np.testing.assert_allclose(found, expected, rtol=1e-9)


class Line(keras.Model):
  """Images `[n, 2, 2, 1]` of codes, or scores `[n]` of images: a linear layer and a tanh."""

  def __init__(self, inputs: int, outputs: tuple[int, ...]):
    super().__init__()
    self.dense = keras.layers.Dense(int(np.prod(outputs, initial=1)))
    self.dense.build((None, inputs))
    self.out = outputs
    self.calls = 0
    self.built = True

  def call(self, inputs, labels=None, training=False):
    self.calls += 1
    x = self.dense(tf.reshape(inputs, [inputs.shape[0], -1]))
    return tf.reshape(tf.tanh(x), [-1, *self.out])


def line_gan(steps: int) -> logan.LOGAN:
  """LOGAN of two linear networks, with plain gradient descent."""
  keras.utils.set_random_seed(0)
  return logan.LOGAN(
      (2, 2, 1), 10, optimizer=lambda: keras.optimizers.SGD(0.5),
      generator=lambda **_: Line(3, (2, 2, 1)), discriminator=lambda **_: Line(4, ()), latent_dim=3,
      optimization=lambda: LatentOptimization(steps, weight=2.0), discriminator_updates=1)


@pytest.fixture
def float64():
  keras.config.set_floatx("float64")
  keras.config.set_dtype_policy("float64")


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_each_update_scores_its_codes_once_for_each_step(steps, float64):
  model = line_gan(steps)
  with context.entered(tf.constant(0, tf.int64)):  # Line by line, so that calls can be counted.
    model({name: tf.constant(value) for name, value in BATCH.items()})
  assert (model.generator.calls, model.discriminator.calls) == (2 * (steps + 1),) * 2


def loss_by_hand(model: logan.LOGAN, z: tf.Tensor, steps: int, real: tf.Tensor | None) -> tf.Tensor:
  """The loss of either player on the whole batch, with the gradient by z written out."""
  [v] = tf.transpose(model.discriminator.dense.kernel.value)
  w = model.generator.dense.kernel.value
  start = z
  for _ in range(steps):
    fake = model.generator(z)
    score = model.discriminator(fake)
    # score = tanh(v tanh(z w + b) + c)
    inner = tf.reshape(1 - fake ** 2, [-1, 4]) * v
    g = (1 - score ** 2)[:, None] * (inner @ tf.transpose(w))
    move = 0.9 * g / (5.0 + tf.reduce_sum(g ** 2, 1, keepdims=True))
    z = tf.clip_by_value(z + move * [1.0, 1.0, 0.0], -1, 1)
  score = model.discriminator(model.generator(z))
  cost = 2.0 * tf.reduce_mean(tf.reduce_sum((z - start) ** 2, 1))
  if real is None:
    return cost - tf.reduce_mean(score)
  return cost + tf.reduce_mean(tf.nn.relu(1 + score) + tf.nn.relu(1 - model.discriminator(real)))


@pytest.mark.parametrize("steps", [1, 2])
def test_a_step_is_that_of_the_formulas(steps, float64):
  random.set_seed(3)
  model = line_gan(steps)
  [scalars] = replicator.Replicator().run(model, BATCH)
  found = [v.numpy() for v in model.trainable_variables]

  other = line_gan(steps)
  with context.entered(tf.constant(0, tf.int64)):
    codes = [uniform_latents("z", [8, 3]) for _ in range(2)]
  real = tf.constant(IMAGES / 127.5 - 1.0)
  for name, z, images in zip(("discriminator", "generator"), codes, (real, None), strict=True):
    variables = [v.value for v in getattr(other, name).trainable_variables]
    with tf.GradientTape() as tape:
      loss = loss_by_hand(other, z, steps, images)
    np.testing.assert_allclose(scalars[name], loss, rtol=1e-12)
    for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
      variable.assign_sub(0.5 * gradient)
  for value, variable in zip(found, other.trainable_variables, strict=True):
    np.testing.assert_allclose(value, variable, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["latent_dim", "discriminator_updates"])
def test_counts_are_checked(name):
  with pytest.raises(UsageError, match=f"LOGAN.{name} = 0: must be at least 1"):
    logan.LOGAN((8, 8, 1), 10, optimizer=keras.optimizers.SGD, generator=Line, discriminator=Line,
                **{name: 0})
