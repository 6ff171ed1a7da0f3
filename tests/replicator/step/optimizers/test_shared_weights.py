"""A variable that two losses share, and the optimizer that owns it, against NumPy."""

from replicator import wrap_optimizer

import keras
import numpy as np
import pytest
import tensorflow as tf

RNG = np.random.default_rng(0)
X, Y, Z = RNG.normal(size=[3, 8])
START, RATE = (0.7, -0.4, 1.3), 0.1  # The trunk and its two heads.
pytestmark = pytest.mark.usefixtures("float64")


def gradient(trunk: float, head: float, target: np.ndarray) -> np.ndarray:
  """That of mean((head trunk x - target)^2) by the trunk and the head."""
  error = 2 * (head * trunk * X - target) * X
  return np.mean([error * head, error * trunk], 1)


def trained(replicator, in_one_update: bool) -> tuple[list[np.ndarray], int]:
  """The variables after each of three steps, and the number of updates."""
  with replicator.scope():
    variables = [keras.Variable(value, dtype="float64") for value in START]
    optimizer = wrap_optimizer(keras.optimizers.SGD(RATE), variables)
  trunk, one, other = variables

  def step(batch):
    losses = [lambda x, y, head=head: tf.reduce_mean(tf.square(head * trunk * x - y))
              for head in (one, other)]
    if in_one_update:
      optimizer.minimize(lambda x, y, z: losses[0](x, y) + losses[1](x, z), *batch)
      return tf.zeros([])
    for loss, target in zip(losses, batch[1:], strict=True):
      with tf.GradientTape() as tape:
        value = loss(batch[0], target)
      optimizer.apply(tape.gradient(value, variables), variables)
    return tf.zeros([])

  values = []
  for _ in range(3):
    replicator.run(step, (X, Y, Z))
    values.append([float(v.numpy()) for v in variables])
  return values, int(optimizer.keras_optimizer.iterations.numpy())


def test_one_optimizer_minimizes_the_sum_of_two_losses(one_or_two):
  trunk, one, other = START
  expected = []
  for _ in range(3):
    (by_trunk, by_one), (more, by_other) = gradient(trunk, one, Y), gradient(trunk, other, Z)
    trunk, one, other = (trunk - RATE * (by_trunk + more), one - RATE * by_one,
                         other - RATE * by_other)
    expected.append([trunk, one, other])
  values, updates = trained(one_or_two, in_one_update=True)
  np.testing.assert_allclose(values, expected, rtol=1e-12)
  assert updates == 3


def test_one_optimizer_makes_an_update_for_each_loss_which_leaves_the_other_head_alone(one_or_two):
  trunk, one, other = START
  expected = []
  for _ in range(3):
    by_trunk, by_one = gradient(trunk, one, Y)
    trunk, one = trunk - RATE * by_trunk, one - RATE * by_one
    by_trunk, by_other = gradient(trunk, other, Z)
    trunk, other = trunk - RATE * by_trunk, other - RATE * by_other
    expected.append([trunk, one, other])
  values, updates = trained(one_or_two, in_one_update=False)
  np.testing.assert_allclose(values, expected, rtol=1e-12)
  assert updates == 6
