"""LeCam's averages: their closed form, micro-batches, replicas and a restart."""

import replicator
from models.gan.penalties.lecam import lecam
from models.gan.penalties.scores import Scores
from replicator import Replicator, replicated
from replicator.step.variables import variables_of

import numpy as np
import pytest
import tensorflow as tf

REAL, FAKE = np.random.default_rng(0).normal(size=[2, 3, 8])


def first_pixel(images, labels, training):
  return images[:, 0, 0, 0]


class Step(tf.Module):
  """The penalty on scores that are the inputs."""

  def __init__(self, n: int):
    super().__init__()
    self.penalty = lecam(weight=2.0, decay=0.8, start=1)
    self.n = n

  def __call__(self, batch):
    return replicator.microbatch(
        lambda part: self.penalty(Scores(first_pixel, *(x[:, None, None, None] for x in part))),
        batch, self.n)


def penalties(step: Step, engine: Replicator) -> list[float]:
  return [np.mean(engine.run(step, batch)) for batch in zip(REAL, FAKE, strict=True)]


@pytest.mark.parametrize(("strategy", "replicas", "n"), [
    ("default", 1, 1), ("default", 1, 4), ("mirrored", 2, 1), ("mirrored", 2, 2)])
def test_scores_are_pulled_to_the_averages_of_the_batches_before(strategy, replicas, n, float64):
  engine = Replicator(strategy, logical_cpus=replicas if replicas > 1 else None)
  with engine.scope():
    step = Step(n)
  of_real = of_fake = 0.0
  expected = []
  for number, (real, fake) in enumerate(zip(REAL, FAKE, strict=True)):
    value = np.mean(np.maximum(real - of_fake, 0) ** 2 + np.maximum(of_real - fake, 0) ** 2)
    expected.append(2.0 * value if number >= 1 else 0.0)
    of_real = 0.8 * of_real + 0.2 * real.mean()
    of_fake = 0.8 * of_fake + 0.2 * fake.mean()
  np.testing.assert_allclose(penalties(step, engine), expected, rtol=1e-9)
  (averages,) = variables_of(step).values()  # What a checkpoint saves.
  np.testing.assert_allclose(replicated.read(averages), [of_real, of_fake], rtol=1e-9)


def test_a_micro_batch_that_is_not_finite_does_not_move_the_averages(float64):
  engine, step = Replicator("default"), Step(2)
  (averages,) = variables_of(step).values()
  averages.assign([10.0, 10.0])
  real = np.full(4, 20.0)
  real[0] = np.inf  # It is in the first one.
  engine.run(step, (real, np.full(4, 10.0)))
  np.testing.assert_allclose(replicated.read(averages), [11.0, 10.0])


def test_the_averages_are_constants_and_ignore_what_is_not_finite(float64):
  penalty = lecam(start=0)
  real = tf.constant(REAL[0][:, None, None, None])
  with tf.GradientTape() as tape:
    tape.watch(real)
    value = penalty(Scores(first_pixel, real, real + 1))
  found = tape.gradient(value, real)[:, 0, 0, 0]
  np.testing.assert_allclose(found, 0.3 * (2 * np.maximum(REAL[0], 0)
                                           + 2 * np.minimum(REAL[0] + 1, 0)) / 8)
  (averages,) = variables_of(penalty).values()
  np.testing.assert_allclose(replicated.read(averages),
                             [0.01 * REAL[0].mean(), 0.01 * (REAL[0].mean() + 1)])
  penalty(Scores(first_pixel, real * np.inf, real))
  assert np.isfinite(replicated.read(averages)).all()
