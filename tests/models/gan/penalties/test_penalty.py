"""Weights and schedules, penalties of some steps only, and the same training on any replicas."""

import replicator
from models.gan.penalties.gradients import r1, wgan_gp
from models.gan.penalties.penalty import Penalty
from models.gan.penalties.scores import Scores
from replicator import Replicator, random
from replicator.step.optimizers.schedules import linear
from tests.models.gan.penalties.conftest import make_discriminator
from tests.programs.capabilities import eagerly

import keras
import numpy as np
import pytest
import tensorflow as tf

IMAGES = np.random.default_rng(0).normal(size=[8, 6, 6, 2])


class Slope:
  """A discriminator whose scores are a multiple of the first pixel."""

  def __init__(self, factor: float):
    self.factor = factor

  def __call__(self, images, labels, training):
    return self.factor * images[:, 0, 0, 0]


def values(penalty: Penalty, steps: int) -> list[float]:
  """The penalty on a slope of 3 in the first steps; its measure is 9 / 2."""
  engine = Replicator()
  step = lambda: penalty(Scores(Slope(3.0), tf.ones([2, 6, 6, 1]), tf.zeros([2, 6, 6, 1])))
  return [float(engine.run(step)[0]) for _ in range(steps)]


def test_the_weight_may_follow_a_schedule():
  assert values(r1(gamma=linear(2.0, 6.0, end=2)), 4) == [9.0, 18.0, 27.0, 27.0]


def test_a_lazy_penalty_has_the_same_mean_over_steps():
  assert values(r1(gamma=2.0, every=3), 6) == [27.0, 0.0, 0.0, 27.0, 0.0, 0.0]


def test_the_steps_between_do_not_compute_a_lazy_penalty():
  computed = tf.Variable(0)

  def measure(scores):
    with tf.control_dependencies([computed.assign_add(1)]):
      return tf.reduce_mean(scores.gradients[0])

  assert sum(values(Penalty("counted", measure, 1.0, every=4), 8)) > 0
  assert int(computed) == 2


class Step(tf.Module):
  """An update of a discriminator with penalties, of which one counts in every second step."""

  def __init__(self):
    super().__init__()
    random.set_seed(0)
    self.discriminator = make_discriminator()
    self.penalties = [r1(gamma=0.1), wgan_gp(weight=0.1, every=2)]
    self.optimizer = replicator.wrap_optimizer(keras.optimizers.SGD(0.1, momentum=0.5),
                                               self.discriminator.trainable_variables)

  def __call__(self, images):
    def loss():
      scores = Scores(self.discriminator, images, tf.sin(3.0 * images))
      terms = [tf.reduce_mean(tf.nn.softplus(scores.fake - scores.real)),
               *(penalty(scores) for penalty in self.penalties)]
      return [sum(terms), *terms]

    outputs, gradients = self.optimizer.loss_and_gradients(loss)
    self.optimizer.apply(gradients)
    return outputs


def train(*engine, **options) -> list[np.ndarray]:
  """The scalars of two steps, then all variables."""
  on = Replicator(*engine, **options)
  with on.scope():
    step = Step()
  images = IMAGES.astype(keras.config.floatx())
  scalars = [np.mean(on.run(step, images), 0) for _ in range(2)]
  return [*scalars, *map(np.asarray, step.discriminator.variables)]


@pytest.mark.slow  # `test_gans` trains with penalties on replicas and in micro-batches.
def test_a_lazy_penalty_under_xla_on_two_replicas_does_not_change_the_training(float64):
  with eagerly():  # To compile it would take longer than its two steps.
    expected = train()
  assert expected[0][3] > 0 and expected[1][2] > 0 and expected[1][3] == 0
  for x, y in zip(train("mirrored", logical_cpus=2, jit_compile=True), expected, strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_loss_scaling_changes_a_penalized_update_by_rounding_only():
  def update(precision: str) -> np.ndarray:
    keras.config.set_dtype_policy(precision)
    found = train()
    keras.config.set_dtype_policy("float32")
    return np.concatenate([x.ravel() for x in found])
  np.testing.assert_allclose(update("mixed_float16"), update("float32"), rtol=0.02, atol=0.01)
