"""Lambda returns, and their range over all replicas, against NumPy in float64."""

import replicator
from models.rl.world_model.returns import ReturnRange, lambda_returns
from replicator import Replicator

import numpy as np
import pytest
import tensorflow as tf

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("lambda_", [0.0, 0.8, 1.0])
def test_returns_are_the_mean_of_n_step_returns(lambda_):
  reward, value = RNG.normal(size=[2, 3, 5])
  discount = RNG.uniform(size=[3, 5])
  found = lambda_returns(*map(tf.constant, (reward, discount, value)), lambda_)

  def n_step(i: int, n: int) -> np.ndarray:
    """The rewards of n actions from i on, and the value of the state after them."""
    if n == 0:
      return value[:, i - 1]
    return reward[:, i] + discount[:, i] * n_step(i + 1, n - 1)

  for i in range(5):
    rest = 5 - i
    weights = [(1 - lambda_) * lambda_ ** (n - 1) for n in range(1, rest)] + [lambda_ ** (rest - 1)]
    expected = sum(w * n_step(i, n) for n, w in enumerate(weights, 1))
    np.testing.assert_allclose(found[:, i], expected, rtol=1e-12)


class Measured(tf.Module):
  """A step that measures its rows of some returns, and logs the range."""

  def __init__(self, returns: np.ndarray):
    super().__init__()
    self._returns, self.range = returns, ReturnRange()

  def __call__(self) -> dict[str, tf.Tensor]:
    n = replicator.num_replicas()
    rows = tf.reshape(tf.constant(self._returns), [n, -1, self._returns.shape[1]])
    return {"range": self.range.update(rows[replicator.replica_id()])}


@pytest.mark.parametrize("strategy, count", [
    ("one_device", None), ("mirrored", 2), ("mirrored", 4), ("central_storage", 2)])
def test_the_range_is_that_of_the_returns_of_all_replicas(strategy, count, float64):
  # Sorted, so that no replica by itself sees the range.
  returns = np.sort(1000.0 * RNG.normal(size=[8, 3]), None).reshape([8, 3])
  replica = Replicator(strategy, logical_cpus=count)
  with replica.scope():
    step = Measured(returns)
  width = np.subtract(*np.percentile(returns, [95, 5]))
  for average in (0.01 * width, 0.01 * width + 0.99 * 0.01 * width):
    for found in replica.run(step):
      np.testing.assert_allclose(found["range"], average, rtol=1e-9)
    np.testing.assert_allclose(step.range.average.numpy(), average, rtol=1e-9)


def test_small_returns_are_not_made_larger():
  found = ReturnRange().update(tf.constant([0.0, 0.1]))
  assert float(found) == 1.0
