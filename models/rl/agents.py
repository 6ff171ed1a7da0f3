"""How any agent is trained that learns from a replay: act, learn, evaluate, in turn."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import gin
import tensorflow as tf

import replicator
from models.rl.actor import Actor
from models.rl.actor_pool import ActorPool
from models.rl.environments import Environments
from models.rl.evaluation import EpisodeEvaluator
from models.rl.normalization import Normalizer
from models.rl.rate_limiter import RateLimiter
from models.rl.replay import Replay
from replicator import UsageError, random


class Agent(Protocol):
  """A step that samples from its replay, and acts.

  Attributes:
    replay: its experience.
    actor: fills the replay.
  """

  replay: Replay
  actor: Actor | ActorPool

  def __call__(self) -> dict[str, tf.Tensor]:
    """One training step of this replica; returns scalars to log."""

  def act(self, observations: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Actions in [-1, 1]: `[n, *shape], [n, action_size] -> [n, action_size]`; noise ~ N(0, 1)."""


@gin.configurable(denylist=["environments", "replay", "normalizer"])
def make_actor(environments: Environments, replay: Replay, normalizer: Normalizer | None,
               processes: int = 0) -> Actor | ActorPool:
  """What acts for an agent; made in its constructor.

  Args:
    environments: to act in.
    replay: gets the experience.
    normalizer: gets the observations; or None.
    processes: 0: in turns with training, in this process. Otherwise so many processes act while it
      trains.
  """
  seed = random.seed_of("actor")
  if processes == 0:
    return Actor(environments, replay, normalizer, seed)
  return ActorPool(environments, replay, normalizer, processes, seed)


def train(make_agent: Callable[[Environments], Agent], environments: Callable[[], Environments],
          workdir: str) -> Any:
  """Trains an agent in environments of its own, or resumes the run in `workdir`.

  Before every call of the compiled steps there are as many environment steps as the `RateLimiter`
  says. An `Actor` made them with the policy of that moment: it is never older than
  `train.steps_per_call` training steps; see `ActorPool` for what holds with one.

  Returns:
    the trained agent.

  Raises:
    UsageError: there is nothing to learn from after `RateLimiter.start` environment steps.
  """
  acted_in = environments()
  limiter, evaluator = RateLimiter(), EpisodeEvaluator(environments)
  acting: set[Actor | ActorPool] = set()

  def act(agent: Agent, step: int) -> None:
    acting.add(agent.actor)
    agent.actor.collect(agent.act, limiter.environment_steps(step), step)
    if not agent.replay.size():
      raise UsageError(f"RateLimiter.start = {limiter.start}: after so many steps of "
                       f"Environments.number = {acted_in.number} together the replay has no "
                       "transition of Replay.n_step steps yet; write more")

  def evaluate(agent: Agent) -> replicator.Evaluation:
    found = evaluator(agent)
    steps = float(agent.actor.environment_steps.numpy())
    return dataclasses.replace(found, scalars={**found.scalars, "environment_steps": steps})

  try:
    return replicator.train(lambda: make_agent(acted_in), evaluate=evaluate, before_call=act,
                            workdir=workdir)
  finally:
    for actor in acting:
      actor.close()
