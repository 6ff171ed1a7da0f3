"""Rollouts: the newest steps of all environments, for on-policy learning.

The actor inserts them all at once, and the policy evaluates them on insertion. The agent trains on
minibatches of them, in a new order in each epoch, until the next rollout.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import replicator
from models.rl.replay.timesteps import END, TERMINATED, Timesteps
from replicator import UsageError, replicated
from replicator.errors import RunFailed, at_least_one, from_0_to_1

import gin
import keras
import numpy as np
import tensorflow as tf


class Experience(NamedTuple):
  """n steps. Floating tensors are floatx."""

  observation: tf.Tensor  # [n, *shape], as the policy saw it.
  action: tf.Tensor  # [n, a]
  log_probability: tf.Tensor  # [n], of the action, when it was taken.
  advantage: tf.Tensor  # [n], over the value of the observation, see `advantages`.
  target: tf.Tensor  # [n], the return: the advantage plus that value.


def advantages(reward: np.ndarray, flag: np.ndarray, value: np.ndarray, discount: float,
               gae_lambda: float) -> np.ndarray:
  """Computes generalized advantage estimates (Schulman et al. 2016, arXiv:1506.02438, eq. 16).

      A_t = sum_k (discount gae_lambda)^k delta_(t + k)
      delta_t = r_t + discount V_(t + 1) - V_t

  The sum ends where the episode ends or was cut. V after the last step is 0 if the episode
  terminated there, otherwise the value of the observation where it was cut.

  Args:
    reward: float64 [m], of concatenated streams of timesteps, each of which ends with an END.
    flag: [m], flags of the timesteps.
    value: float64 [m], V of the observations.
    discount: discount factor per step.
    gae_lambda: from 0, which relies on the values, to 1, which uses only the rewards.

  Returns:
    float64 [m]; meaningless at END timesteps.
  """
  follows = np.where(flag == TERMINATED, 0.0, discount) * np.append(value[1:], 0.0)
  differences = (reward + follows - value).tolist()
  found, advantage = np.zeros(len(reward)), 0.0
  for i in reversed(range(len(reward))):
    is_end = flag[i] == END
    advantage = 0.0 if is_end else differences[i] + discount * gae_lambda * advantage
    found[i] = advantage
  return found


@gin.configurable(denylist=["observation_shape", "action_size", "streams", "evaluate", "seed"])
class Rollouts(tf.Module):
  """The newest `length` steps of each stream. Create it in the constructor of a step.

  Every replica has a copy, and takes its part of each minibatch of `train.global_batch_size`. The
  order is a function of the seed and the rollout's number. Steps in which an environment failed are
  replaced with repeated ones.

  Args:
    observation_shape: shape of one observation.
    action_size: length of an action.
    streams: number of environments that write into it.
    evaluate: takes observations `[m, *shape]` and actions `[m, a]` at the end of a rollout; returns
      the observations as the policy sees them, `[m, *shape]`, and the actions' log probabilities
      and the observations' values, [m].
    seed: determines the order.
    length: steps of a rollout in each environment.
    epochs: number of passes over a rollout.
    discount: see `advantages`.
    gae_lambda: see `advantages`.

  Attributes:
    steps: number of steps in a rollout.
    updates: number of training steps per rollout.
    number: int64 [], number of rollouts so far.

  Raises:
    UsageError: the minibatches do not divide a rollout, or a setting is invalid.
  """

  def __init__(self, observation_shape: tuple[int, ...], action_size: int, streams: int,
               evaluate: Callable[[np.ndarray, np.ndarray], Any], seed: int, *, length: int = 128,
               epochs: int = 4, discount: float = 0.99, gae_lambda: float = 0.95):
    super().__init__()
    at_least_one("Rollouts", length=length, epochs=epochs)
    from_0_to_1("Rollouts", discount=discount, gae_lambda=gae_lambda)
    self.steps, batch = length * streams, replicator.batch_size()
    if self.steps % batch:
      raise UsageError(f"Rollouts.length = {length}: times Environments.number = {streams} must be "
                       f"a multiple of train.global_batch_size = {batch}, the size of a minibatch")
    self.updates = epochs * self.steps // batch
    self._evaluate, self._seed, self._epochs = evaluate, seed % 2**64, epochs
    self._discount, self._gae_lambda = discount, gae_lambda
    self._begun = -1  # The last rollout requested in this process.
    floatx = keras.config.floatx()
    make = lambda *shape, dtype=floatx: replicated.variable(
        lambda: tf.zeros([self.steps, *shape], dtype))
    self.columns = Experience(make(*observation_shape), make(action_size), make(), make(), make())
    self.order = replicated.variable(np.zeros([epochs * self.steps], np.int64))
    self.number = replicated.variable(0, tf.int64)

  def restored_together(self) -> list[tf.Module]:
    """See `replicator.step.variables.together_in`."""
    return [self]

  def steps_before(self, training_step: int) -> int:
    """Returns the total steps (actions) of all environments when a training step begins.

    Raises:
      RunFailed: all steps of the last rollout failed.
      UsageError: `train.steps_per_call` does not divide the training steps per rollout, or the
        run's rollouts were not restored.
    """
    rollout, behind = divmod(training_step, self.updates)
    number = int(replicated.read(self.number))
    if number != rollout + bool(behind):
      if number == self._begun == rollout + bool(behind) - 1:
        raise RunFailed(f"Rollouts: all {self.steps} steps of a rollout failed, so there is "
                        "nothing to learn from; the lines above say why")
      if not number:
        raise UsageError(f"Rollouts: the run resumes at step {training_step}, which does not fit "
                         "its rollouts; restore the old Rollouts.length and Environments.number, "
                         "or use a different --workdir")
      raise UsageError("train.steps_per_call: must divide the training steps between two rollouts, "
                       f"Rollouts.epochs * {self.updates // self._epochs} minibatches = "
                       f"{self.updates}")
    if not behind:
      self._begun = rollout
    return (rollout + 1) * self.steps

  def insert(self, timesteps: Timesteps) -> None:
    """Replaces the rollout. Each stream of the timesteps ends with an END."""
    is_step = timesteps.flag != END
    if not is_step.any():
      return
    seen, log_probability, value = (
        np.asarray(x) for x in self._evaluate(timesteps.observation, timesteps.action))
    # In float64 on the host, stream by stream.
    rows = np.argsort(timesteps.stream, kind="stable")
    advantage = np.zeros(len(rows))
    advantage[rows] = advantages(timesteps.reward[rows].astype(np.float64), timesteps.flag[rows],
                                 value[rows].astype(np.float64), self._discount, self._gae_lambda)
    chosen = np.resize(np.flatnonzero(is_step), self.steps)
    for variable, column in zip(self.columns, Experience(
        seen, timesteps.action, log_probability, advantage, advantage + value), strict=True):
      replicated.assign(variable, column[chosen].astype(variable.dtype.as_numpy_dtype))
    number = int(replicated.read(self.number))
    draw = np.random.default_rng([self._seed, number])
    replicated.assign(self.order, np.concatenate(
        [draw.permutation(self.steps) for _ in range(self._epochs)]))
    replicated.assign(self.number, number + 1)

  def minibatch(self) -> Experience:
    """Returns this replica's part of the minibatch of a training step."""
    n = replicator.batch_size()
    place = replicator.step_number() % self.updates * replicator.num_replicas() + tf.cast(
        replicator.replica_id(), tf.int64)
    index = replicated.gather(self.order, place * n + tf.range(n, dtype=tf.int64))
    return Experience(*(replicated.gather(column, index) for column in self.columns))
