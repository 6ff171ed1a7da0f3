"""Training of agents that learn from a replay: act, learn and evaluate in turn."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol

import replicator
from models.rl.acting.action_noise import Exploration
from models.rl.acting.actor import Actor, warn
from models.rl.acting.evaluation import EpisodeEvaluator
from models.rl.acting.reward_normalizer import RewardNormalizer
from models.rl.actor_pool.pool import ActorPool
from models.rl.environments import repetition
from models.rl.environments.environments import Environments
from models.rl.networks.observation_normalizer import Normalizer
from models.rl.rate_limiter import RateLimiter, acting_in, check_on_policy
from models.rl.recording.recorded import Folders, RecordedActor, insert
from models.rl.replay import random_shift  # noqa: F401  (for gin)
from models.rl.replay.replay import Replay
from models.rl.replay.rollouts import Rollouts
from models.rl.replay.sequences import SequenceReplay
from replicator import UsageError, random, schedules

import gin
import tensorflow as tf


class Agent(Protocol):
  """A step that samples from its replay, and acts.

  A recurrent policy also has a `memory_size`, which `make_actor` takes, and its `act` takes and
  returns a memory; see `models.rl.acting.memory.Act`. If the policy's noise is not as long as an
  action, `noise_size` is its length.
  """

  # Its experience; `Rollouts` for on-policy agents.
  replay: Replay | SequenceReplay | Rollouts
  actor: Actor | ActorPool | RecordedActor  # Fills the replay.

  def __call__(self) -> dict[str, tf.Tensor]:
    """Takes one training step of this replica; returns scalars to log."""

  def act(self, observations: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Returns actions: `[n, *shape], [n, action_size]` -> the latter; noise ~ N(0, 1), 0 is greedy.

    They are clipped to [-1, 1]. In a discrete environment, the largest number of each choice's
    block selects its option.
    """


@gin.configurable(denylist=["environments", "replay", "normalizer", "memory_size", "noise_size"])
def make_actor(environments: Environments, replay: Replay | SequenceReplay | Rollouts,
               normalizer: Normalizer | None, memory_size: int = 0, processes: int = 0,
               noise_size: int | None = None, normalize_rewards: bool = False,
               recorded: Folders | None = None) -> Actor | ActorPool | RecordedActor:
  """Makes the actor of an agent. Call it in the agent's constructor.

  Args:
    environments: where it acts.
    replay: receives the experience.
    normalizer: receives the observations; or None.
    memory_size: length of the memory of a recurrent policy; 0 for other policies.
    processes: 0 alternates acting and training in this process; above 0, this many processes act
      while the learner trains. Agents that learn from `Rollouts` or have a memory need 0.
    noise_size: see `Agent`; None for the length of an action.
    normalize_rewards: whether a `RewardNormalizer` normalizes the rewards that the agent learns
      from.
    recorded: data sets of episodes to learn from instead of acting, see `dataset`; None to act.
  """
  seed, on_policy = random.seed_of("actor"), isinstance(replay, Rollouts)
  # On-policy agents take no random actions; a gin binding of `random_steps` is an error.
  exploration = (Exploration(random_steps=0, noise_size=noise_size) if on_policy else
                 Exploration(noise_size=noise_size))
  rewards = RewardNormalizer(environments.number) if normalize_rewards else None
  if recorded:  # The exploration is created anyway, because agents' gin files bind it.
    if on_policy:
      raise UsageError("make_actor.recorded: this agent is on-policy and cannot learn from "
                       "recorded episodes; train an off-policy agent, such as TD3")
    return RecordedActor(environments, replay, normalizer, recorded, rewards)
  has_noise = not (environments.discrete or on_policy)
  if not has_noise and (exploration.scales(environments.number) != 1).any():
    raise UsageError(f"Exploration.scale = {exploration.scale}: this agent's policy defines the "
                     "probability of each action, so its noise must have scale 1")
  if processes == 0:
    return Actor(environments, replay, normalizer, seed, exploration, closes=on_policy,
                 memory_size=memory_size, rewards=rewards)
  if isinstance(replay, Rollouts):
    raise UsageError(f"make_actor.processes = {processes}: this agent is on-policy, but actor "
                     "processes lag behind its policy; use 0")
  if memory_size:
    raise UsageError(f"make_actor.processes = {processes}: this agent's policy is recurrent, but "
                     "actor processes have no memory; use 0")
  if environments.vectorization == "async" and not environments.in_processes:
    raise UsageError("Environments.vectorization = 'async': with make_actor.processes = "
                     f"{processes} each actor steps its environments in turn; use 'sync'")
  return ActorPool(environments, replay, normalizer, processes, seed, exploration,
                   rewards=rewards)


def exploration_at(value: schedules.Number, actor: Actor | ActorPool | RecordedActor
                   ) -> tf.Tensor:
  """Returns the value of a number or schedule at the actor's training step: float64 []."""
  return schedules.value_at(
      value, RateLimiter().training_step(tf.identity(actor.environment_steps)))


def scaled(noise: tf.Tensor, scale: schedules.Number, actor: Actor | ActorPool | RecordedActor
           ) -> tf.Tensor:
  """Multiplies noise by a number or schedule."""
  return tf.cast(exploration_at(scale, actor), noise.dtype) * noise


def experience(environments: Environments, discrete: bool = False, noise_size: int | None = None
               ) -> tuple[Normalizer, Replay, Actor | ActorPool | RecordedActor]:
  """Makes an agent's normalizer, replay and actor. Call it in the agent's constructor.

  For `noise_size` see `Agent`. Raises a UsageError if the agent, whose actions are `discrete` or
  not, cannot act in the environments.
  """
  check_actions(environments, discrete)
  normalizer, replay = Normalizer(environments.observation_shape), replay_for(environments)
  return normalizer, replay, make_actor(environments, replay, normalizer,
                                        noise_size=noise_size)


def replay_for(environments: Environments, recorded: Folders = ()) -> Replay:
  """Makes an agent's replay. Call it in the agent's constructor.

  It starts with the episodes of the `recorded` data sets, whose rewards are not normalized.
  """
  replay = Replay(environments.observation_shape, environments.action_size, environments.number,
                  observation_dtype=environments.observation_dtype, stack=environments.stack,
                  goals=environments.goals, max_episode_steps=environments.max_episode_steps)
  if recorded:
    insert(recorded, environments, replay)
  return replay


def check_actions(environments: Environments, discrete: bool) -> None:
  """Raises a UsageError if the environments' actions are not one choice, or not continuous."""
  if len(environments.choices) != discrete:
    wanted, kind, name = (("one choice", "Discrete", "CartPole-v1") if discrete else
                          ("continuous", "a Box of floats", "Pendulum-v1"))
    found = ", ".join(map(str, environments.choices))
    found = ("a Box" if not found else f"MultiDiscrete([{found}])" if "," in found else
             f"Discrete({found})")
    raise UsageError(f"Environments.name = '{environments.name}': its actions are {found}, but "
                     f"this agent's are {wanted}; choose an environment whose actions are {kind}, "
                     f"such as '{name}'{', or train PPO' if found != 'a Box' else ''}")


def check_priorities(agent: Agent) -> None:
  """Raises a UsageError if an agent's traced step never updates its replay's priorities."""
  if getattr(agent.replay, "prioritized", False) and not agent.replay.is_updated:
    raise UsageError("Replay.priority_exponent: is above 0, but the step of "
                     f"{type(agent).__name__} never calls self.replay.update_priorities, so it "
                     "would sample uniformly; call it with each transition's error, or set it to 0")


def train(make_agent: Callable[[Environments], Agent], environments: Callable[[], Environments],
          workdir: str) -> Any:
  """Trains an agent in `environments`, or resumes the run in `workdir`.

  Before every call of the compiled steps, the actor takes environment steps until the run has as
  many as the `RateLimiter`, or the agent's `Rollouts`, require. An `Actor` uses the current policy,
  which is at most `train.steps_per_call` training steps old; for an `ActorPool` see there. All
  environments are closed at the end, even if training raises an error.

  Returns:
    The trained agent.

  Raises:
    UsageError: the replay has no transition after `RateLimiter.learning_starts` environment steps.
  """
  acted_in = environments()
  limiter, evaluator = functools.cache(RateLimiter), EpisodeEvaluator(environments)
  with contextlib.ExitStack() as stack:
    stack.enter_context(acting_in(acted_in))
    stack.callback(evaluator.close)
    actors: set[Actor | ActorPool | RecordedActor] = set()

    def act(agent: Agent, step: int) -> None:
      is_first = agent.actor not in actors
      if is_first:
        check_on_policy(isinstance(agent.replay, Rollouts))
        actors.add(agent.actor)
        stack.callback(agent.actor.close)
        if isinstance(agent.actor, Actor) and (line := repetition.doubt(acted_in)):
          warn(line)
      if isinstance(agent.replay, Rollouts):
        due = agent.replay.steps_before(step) * acted_in.frames_per_step
        agent.actor.collect(agent.act, due, step)
        return
      due = limiter().environment_steps(step)
      if is_first and not agent.replay.size():  # The replay of a resumed run may not have fitted.
        due = max(due, int(agent.actor.environment_steps.numpy()) + limiter().learning_starts)
      if not is_first:
        check_priorities(agent)
      agent.actor.collect(agent.act, due, step)
      if not agent.replay.size():
        raise UsageError(f"RateLimiter.learning_starts = {limiter().learning_starts}: after that "
                         f"many steps, over all Environments.number = {acted_in.number}, the "
                         "replay has no transition of Replay.n_step steps yet; increase it")

    def evaluate(agent: Agent) -> replicator.Evaluation:
      with repetition.generators_kept():
        found = evaluator(agent)
      steps = float(agent.actor.environment_steps.numpy())
      if isinstance(agent.actor, RecordedActor):
        return found
      return dataclasses.replace(found, scalars={**found.scalars, "environment_steps": steps},
                                 axes=("environment_steps",))

    return replicator.train(lambda: make_agent(acted_in), evaluate=evaluate, before_call=act,
                            workdir=workdir)
