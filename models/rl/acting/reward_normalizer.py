"""Normalization of rewards, so that returns have the same variance for any scale of rewards."""

from models.rl.networks.observation_normalizer import added, deviation
from models.rl.replay.timesteps import END, Timesteps
from replicator import replicated
from replicator.errors import above_zero, from_0_to_1

import gin
import numpy as np
import tensorflow as tf


@gin.configurable(denylist=["streams"])
class RewardNormalizer(tf.Module):
  """Normalizer that divides rewards by the running standard deviation of discounted returns.

  Like Gymnasium's `NormalizeReward`, from PPO's code (Engstrom et al. 2020, arXiv:2005.12729), but
  with one deviation for all environments, which checkpoints save. Returns are over an episode's
  rewards so far, R_t = r_t + discount R_(t-1). Logs and evaluations use the original rewards.

  Args:
    streams: number of environments.
    discount: see above; usually the agent's discount.
    limit: normalized rewards are clipped to `[-limit, limit]`.

  Attributes:
    count, mean, sum_of_squares: float64 [], the statistics of the returns.
    running: float64 [streams], R of the current episodes.
    frozen: whether the statistics no longer change.
  """

  def __init__(self, streams: int, discount: float = 0.99, limit: float = 10.0):
    super().__init__()
    from_0_to_1("RewardNormalizer", discount=discount)
    above_zero("RewardNormalizer", limit=limit)
    self._discount, self._limit, self.frozen = discount, limit, False
    self.count, self.mean, self.sum_of_squares = (
        replicated.variable(0.0, tf.float64, name) for name in ("count", "mean", "sum_of_squares"))
    self.running = replicated.variable(np.zeros([streams]), name="running")

  def normalized(self, timesteps: Timesteps) -> Timesteps:
    """Adds timesteps to the statistics, and returns them with normalized rewards."""
    returns = self._returns(timesteps)[timesteps.flag != END]
    variables = [self.count, self.mean, self.sum_of_squares]
    statistics = [replicated.read(v) for v in variables]
    if len(returns) and not self.frozen:
      statistics = added(statistics, returns)
      for variable, value in zip(variables, statistics, strict=True):
        replicated.assign(variable, value)
    varied = deviation(statistics) if statistics[0] else 0.0
    # If returns are constant, up to rounding, rewards are not scaled.
    reward = timesteps.reward / (varied if varied > 1e-8 else 1.0)
    reward = np.clip(reward, -self._limit, self._limit)
    return timesteps._replace(reward=reward.astype(np.float32))

  def taken_with_networks(self) -> dict[str, tf.Variable]:
    """Returns the variables, by name, that are taken from another run with its networks."""
    return {"count": self.count, "mean": self.mean, "sum_of_squares": self.sum_of_squares}

  def _returns(self, timesteps: Timesteps) -> np.ndarray:
    """Returns R of each timestep, float64 [m]; 0 for ENDs."""
    running, found = replicated.read(self.running), np.zeros(len(timesteps.reward))
    rows = zip(timesteps.stream.tolist(), timesteps.flag.tolist(), timesteps.reward.tolist(),
               strict=True)
    for i, (stream, flag, reward) in enumerate(rows):
      running[stream] = 0.0 if flag == END else reward + self._discount * running[stream]
      found[i] = running[stream]
    replicated.assign(self.running, running)
    return found
