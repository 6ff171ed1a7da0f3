"""The learner of `benchmarks.d4pg_step` with this project: `experiments.d4pg` under XLA."""

import types
from collections.abc import Callable

import replicator
from benchmarks import d4pg_problem as problem
from benchmarks.d4pg_problem import BATCH_SIZE, Batch, Rows
from experiments.d4pg import D4PG
from models.rl.replay import replay, timesteps
from replicator.step import context
from replicator.strategies.compiled_step import CompiledStep

import gin
import keras
import numpy as np
import tensorflow as tf

# The properties of environments that the learner needs. Nothing acts here.
_ENVIRONMENTS = types.SimpleNamespace(
    name="random", number=1, observation_shape=(problem.OBSERVATION_SIZE,),
    observation_dtype="float32", action_size=problem.ACTION_SIZE, discrete=False, choices=(),
    goals=None, max_episode_steps=1, stack=1, frames_per_step=1)


class Learner:
  """The agent, which takes one update in each call."""

  def __init__(self, replicas: int = 1, jit_compile: bool = True):
    context.run.global_batch_size = BATCH_SIZE
    for name, value in {
        "Normalizer.enabled": False, "Replay.capacity": problem.ROWS,
        "wrap_optimizer.clip_norm": problem.CLIP_NORM,
        "D4PG.target_update_period": problem.TARGET_PERIOD}.items():
      gin.bind_parameter(name, value)
    mirrored = ("mirrored", replicas) if replicas > 1 else ()
    self.replicator = replicator.Replicator(*mirrored, jit_compile=jit_compile)
    with self.replicator.scope():
      self.agent = D4PG(_ENVIRONMENTS, optimizer=lambda: keras.optimizers.Adam(
          problem.LEARNING_RATE, epsilon=problem.ADAM_EPSILON))
    for optimizer, weights in zip(self._optimizers(), _weights(), strict=True):
      for owned in (optimizer.variables_updated, optimizer.averages):
        for variable, value in zip(owned, weights, strict=True):
          variable.assign(value)

  def update(self, batch: Batch) -> float:
    """Takes one step; returns the critic's loss."""
    def update(batch):
      index, weight = tf.zeros([BATCH_SIZE], tf.int64), tf.ones([BATCH_SIZE])
      self.agent.replay.sample = lambda n: replay.Transitions(*batch, weight, index)
      return self.agent()["loss/critic"]

    return float(self.replicator.run(update, batch)[0])

  def weights(self) -> list[np.ndarray]:
    """The weights of the policy, then of the critic, in the order of `problem.weights`."""
    return [variable.numpy() for optimizer in self._optimizers()
            for variable in optimizer.variables_updated]

  def _optimizers(self) -> list[replicator.Optimizer]:
    return [self.agent.optimizers[name] for name in ("policy", "critic")]


def make_steps(rows: Rows, replicas: int = 1, jit_compile: bool = True) -> Callable[[], float]:
  """A function that samples and updates `STEPS_PER_CALL` times, and returns the last loss."""
  learner = Learner(replicas, jit_compile)
  learner.agent.replay.insert(_with_ends(rows))
  function = CompiledStep(learner.replicator, learner.agent, problem.STEPS_PER_CALL, logs=True)
  calls = 0

  def steps() -> float:
    nonlocal calls
    scalars, _ = function(calls * problem.STEPS_PER_CALL, None).fetch()
    calls += 1
    return float(scalars["loss/critic"][-1])

  return steps


def _weights() -> tuple[list[np.ndarray], list[np.ndarray]]:
  return problem.policy_weights(), problem.critic_weights()


def _with_ends(rows: Rows) -> timesteps.Timesteps:
  """The same experience. The row after a termination is the last observation of that episode."""
  flag = np.where(rows.terminated, timesteps.TERMINATED, timesteps.CONTINUES).astype(np.uint8)
  flag[1:][rows.terminated[:-1]] = timesteps.END
  return timesteps.Timesteps(np.zeros(len(flag), np.int32), rows.observation, rows.action,
                             rows.reward, flag)
