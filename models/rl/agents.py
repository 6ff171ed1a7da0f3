"""The training of agents that learn from a replay: act, learn and evaluate in turn."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import replicator
from models.rl.acting.action_noise import Exploration
from models.rl.acting.actor import Actor
from models.rl.acting.evaluation import EpisodeEvaluator
from models.rl.actor_pool.pool import ActorPool
from models.rl.environments.environments import Environments
from models.rl.networks.observation_normalizer import Normalizer
from models.rl.replay import random_shift  # noqa: F401  (for gin)
from models.rl.replay.replay import Replay
from models.rl.replay.rollouts import Rollouts
from models.rl.replay.sequences import SequenceReplay
from replicator import UsageError, random, schedules
from replicator.errors import above_zero

import gin
import tensorflow as tf


@gin.configurable
@dataclasses.dataclass(frozen=True)
class RateLimiter:
  """Ties environment steps to training steps.

  Attributes:
    start: environment steps before the first training step.
    samples_per_insert: how often each transition is sampled, on average.
  """

  start: int = 1000
  samples_per_insert: float = 32.0

  def __post_init__(self):
    above_zero("RateLimiter", start=self.start, samples_per_insert=self.samples_per_insert)

  def environment_steps(self, training_step: int) -> int:
    """Environment steps of the run, over all environments, when a training step begins."""
    drawn = training_step * replicator.batch_size()
    return self.start + math.floor(drawn / self.samples_per_insert)


class Agent(Protocol):
  """A step that samples from its replay, and acts.

  A recurrent policy has a `memory_size` too, which `make_actor` takes, and its `act` takes and
  returns a memory; see `models.rl.acting.memory.Act`. A policy that takes noise of another length
  than an action has it as `noise_size`.
  """

  # Its experience; `Rollouts` if it learns from what its present policy does.
  replay: Replay | SequenceReplay | Rollouts
  actor: Actor | ActorPool  # Fills the replay.

  def __call__(self) -> dict[str, tf.Tensor]:
    """Takes one training step of this replica; returns scalars to log."""

  def act(self, observations: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Actions: `[n, *shape], [n, action_size] -> [n, action_size]`; noise ~ N(0, 1), 0 is greedy.

    They are numbers in [-1, 1], to which others are clipped; in a discrete environment the place
    of the largest one counts.
    """


@gin.configurable(denylist=["environments", "replay", "normalizer", "memory_size", "noise_size"])
def make_actor(environments: Environments, replay: Replay | SequenceReplay | Rollouts,
               normalizer: Normalizer | None, memory_size: int = 0, processes: int = 0,
               noise_size: int | None = None) -> Actor | ActorPool:
  """Makes the actor of an agent. Call it in the agent's constructor.

  Args:
    environments: where it acts.
    replay: receives the experience.
    normalizer: receives the observations; or None.
    memory_size: length of the memory of a recurrent policy; 0 for other policies.
    processes: 0 acts in this process, in turns with training; any other number of processes act
      while the learner trains, which no agent can use that learns from `Rollouts` or has a memory.
    noise_size: see `Agent`; None for the length of an action.
  """
  seed, on_policy = random.seed_of("actor"), isinstance(replay, Rollouts)
  # A random action is not the policy's. Where gin binds `random_steps`, the run is refused.
  exploration = (Exploration(random_steps=0, noise_size=noise_size) if on_policy else
                 Exploration(noise_size=noise_size))
  has_noise = not (environments.discrete or on_policy)
  if not has_noise and (exploration.scales(environments.number) != 1).any():
    raise UsageError(f"Exploration.scale = {exploration.scale}: this agent's policy says how "
                     "probable each action is, and its noise must have the scale 1")
  if processes == 0:
    return Actor(environments, replay, normalizer, seed, exploration, closes=on_policy,
                 memory_size=memory_size)
  if isinstance(replay, Rollouts):
    raise UsageError(f"make_actor.processes = {processes}: this agent learns from what its present "
                     "policy does, and actors in processes are behind it; write 0")
  if memory_size:
    raise UsageError(f"make_actor.processes = {processes}: this agent's policy remembers the "
                     "episode, and actors in processes have no memory; write 0")
  if environments.vectorization == "async" and not environments.settings.pixels:
    raise UsageError("Environments.vectorization = 'async': with make_actor.processes = "
                     f"{processes} each actor steps its environments in turn; write 'sync'")
  return ActorPool(environments, replay, normalizer, processes, seed, exploration)


def scaled(noise: tf.Tensor, scale: schedules.Number, actor: Actor | ActorPool) -> tf.Tensor:
  """Noise times a number, or a schedule that counts environment steps: of the noise's shape."""
  factor = schedules.value_at(scale, tf.identity(actor.environment_steps))
  return tf.cast(factor, noise.dtype) * noise


def experience(environments: Environments, discrete: bool = False, noise_size: int | None = None
               ) -> tuple[Normalizer, Replay, Actor | ActorPool]:
  """Makes the normalizer, the replay and the actor of an agent, in its constructor.

  Its policy takes `noise_size` numbers of noise, see `Agent`. Raises a UsageError if the agent,
  whose actions are `discrete` or not, cannot act there.
  """
  check_actions(environments, discrete)
  shape = environments.observation_shape
  normalizer = Normalizer(shape)
  replay = Replay(shape, environments.action_size, environments.number,
                  observation_dtype=environments.observation_dtype, stack=environments.stack)
  return normalizer, replay, make_actor(environments, replay, normalizer,
                                        noise_size=noise_size)


def check_actions(environments: Environments, discrete: bool) -> None:
  """Raises a UsageError if the environments' actions are not `discrete`, or are."""
  if environments.discrete != discrete:
    found, wanted, kind, name = (
        ("a Box", "discrete", "Discrete", "CartPole-v1") if discrete else
        (f"Discrete({environments.action_size})", "continuous", "a Box of floats", "Pendulum-v1"))
    raise UsageError(f"Environments.name = '{environments.name}': its actions are {found}, and "
                     f"this agent's are {wanted}; choose an environment whose actions are {kind}, "
                     f"such as '{name}'")


def check_target_networks(optimizers: Mapping[str, replicator.Optimizer]) -> None:
  """Checks that optimizers, by the names of their networks, keep averages: the target networks.

  Raises a UsageError if one keeps none.
  """
  for name, optimizer in optimizers.items():
    if not optimizer.averages:
      raise UsageError(f"{name}/wrap_optimizer.ema_decay = None: an agent's target networks are "
                       "averages of its networks; write 0.995, or 0.0 with ema_every = 100 for "
                       "copies")


def train(make_agent: Callable[[Environments], Agent], environments: Callable[[], Environments],
          workdir: str) -> Any:
  """Trains an agent in environments of its own, or resumes the run in `workdir`.

  Before every call of the compiled steps, the run has as many environment steps as the
  `RateLimiter` says, or the agent's `Rollouts`. An `Actor` took them with the present policy, which
  is at most `train.steps_per_call` training steps old. For an `ActorPool` see there. All
  environments are closed at the end, also when the training raises an error.

  Returns:
    the trained agent.

  Raises:
    UsageError: the replay has no transition after `RateLimiter.start` environment steps.
  """
  acted_in = environments()
  limiter, evaluator = functools.cache(RateLimiter), EpisodeEvaluator(environments)
  with contextlib.ExitStack() as stack:
    stack.callback(evaluator.close)
    actors: set[Actor | ActorPool] = set()

    def act(agent: Agent, step: int) -> None:
      if agent.actor not in actors:
        actors.add(agent.actor)
        stack.callback(agent.actor.close)
      if isinstance(agent.replay, Rollouts):
        agent.actor.collect(agent.act, agent.replay.environment_steps(step), step)
        return
      agent.actor.collect(agent.act, limiter().environment_steps(step), step)
      if not agent.replay.size():
        raise UsageError(f"RateLimiter.start = {limiter().start}: after so many steps of "
                         f"Environments.number = {acted_in.number} together the replay has no "
                         "transition of Replay.n_step steps yet; write more")

    def evaluate(agent: Agent) -> replicator.Evaluation:
      found = evaluator(agent)
      steps = float(agent.actor.environment_steps.numpy())
      return dataclasses.replace(found, scalars={**found.scalars, "environment_steps": steps},
                                 axes=("environment_steps",))

    return replicator.train(lambda: make_agent(acted_in), evaluate=evaluate, before_call=act,
                            workdir=workdir)
