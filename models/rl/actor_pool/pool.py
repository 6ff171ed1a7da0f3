"""Actors in other processes, which act while the learner trains.

The learner gives each actor one order at a time: a number of steps with the current weights. It
collects the answers between calls of its compiled steps. It waits only if there is too little
experience, or if an order has become too old. An actor that dies is replaced.
"""

import concurrent.futures
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any, Literal

from models.rl.acting.action_noise import Exploration
from models.rl.acting.actor import warn
from models.rl.acting.environment_loop import Adder
from models.rl.acting.memory import Act
from models.rl.acting.reward_normalizer import RewardNormalizer
from models.rl.acting.saved_state import RECENT, SavedState
from models.rl.actor_pool.actor_process import Answer, LocalActor, RayActor, Setup
from models.rl.actor_pool.members import Member, PoolState
from models.rl.actor_pool.policy_graph import ExportedPolicy
from models.rl.environments.environments import Environments
from models.rl.networks.observation_normalizer import Normalizer
from models.rl.replay.replay import Replay
from models.rl.replay.sequences import SequenceReplay
from models.rl.replay.timesteps import END, ends
from replicator import UsageError
from replicator.errors import RunFailed
from replicator.processes import GivenUp, gives_up
from replicator.step import context

import gin
import numpy as np
import tensorflow as tf

_MAX_DEATHS = 5  # Deaths of one actor without an answer in between.
_PATIENCE = 60.0  # Seconds without any answer before a warning.
PLACES: dict[str, Callable[[bytes], Any]] = {"local": LocalActor, "ray": RayActor}
"""The class of actors in each place that `ActorPool.where` can name."""


@gin.configurable(denylist=["environments", "replay", "normalizer", "processes", "seed",
                            "exploration", "warn", "rewards"])
class ActorPool(tf.Module):
  """Actors in separate processes, which act like `Actor` while the learner trains.

  Runs are not bit-for-bit repeatable, because an actor's weights depend on the speed of all
  processes. A resumed run starts new episodes.

  Args:
    environments: where the actors act, divided evenly among them; each environment is a stream of
      the replay.
    replay: receives the timesteps.
    normalizer: receives every observation; or None.
    processes: number of actors.
    seed: determines all random numbers.
    exploration: settings for all environments, see `Actor`.
    where: 'local' for processes on this machine; 'ray' for a Ray cluster, see `RayActor`.
    steps_per_order: steps of an order in each environment. The replay receives at most this many
      steps of all environments before they are due.
    max_policy_age: in training steps. The learner waits for an actor whose weights would become
      older.
    warn: called with one line when an actor or an environment fails.
    rewards: normalizes the rewards for the replay; or None.

  Attributes:
    kept: a `SavedState` with the fields of `PoolState`.
    environment_steps: int64 [], total steps of all environments, including failed ones, in
      simulator frames, see `Environments.frames_per_step`.
    episodes: int64 [], finished episodes.
    policy_age: int64 [], training steps between the oldest order of the last collected answers and
      their collection.
    deaths: int64 [], number of actors that died.
  """

  def __init__(self, environments: Environments, replay: Replay | SequenceReplay,
               normalizer: Normalizer | None, processes: int, seed: int = 0,
               exploration: Exploration | None = None,
               where: Literal["local", "ray"] = "local", steps_per_order: int = 50,
               max_policy_age: int = 500, warn: Callable[[str], None] = warn,
               rewards: RewardNormalizer | None = None):
    super().__init__()
    if processes < 1 or environments.number % processes:
      raise UsageError(f"make_actor.processes = {processes}: Environments.number = "
                       f"{environments.number} cannot be divided evenly among them; change one "
                       "of the two")
    if where not in PLACES:
      raise UsageError(f"ActorPool.where = {where!r}: must be 'local' or 'ray'")
    if steps_per_order < 1 or max_policy_age < 1:
      raise UsageError(f"ActorPool.steps_per_order = {steps_per_order}, max_policy_age = "
                       f"{max_policy_age}: must both be at least 1")
    if context.run.num_input_pipelines > 1:
      raise UsageError(f"make_actor.processes = {processes}: actor processes need a learner of one "
                       "process, and this run has several; use 0, and each of them acts")
    self.environments, self.replay, self.normalizer = environments, replay, normalizer
    self.rewards = rewards
    self._processes, self._seed, self._where = processes, seed, where
    self._steps_per_order, self._max_policy_age = steps_per_order, max_policy_age
    self._exploration, self._warn = exploration or Exploration(), warn
    n = environments.number
    self._scales = self._exploration.scales(n)
    self._environments_each = n // processes
    self.kept = SavedState(PoolState(
        0, 0, np.zeros([RECENT]), 0, 0, 0,
        np.zeros([n, *environments.observation_shape], environments.observation_dtype),
        np.zeros([n], bool)))
    self.environment_steps, self.episodes, self.policy_age, self.deaths = (
        self.kept.fields[name] for name in ("environment_steps", "episodes", "policy_age",
                                            "deaths"))
    self._adder = Adder(replay, normalizer, warn, rewards)
    self._policy: ExportedPolicy | None = None
    self._members: list[Member] = []
    self._state: PoolState | None = None  # None: the variables have the state.
    self._step: int | None = None
    self._stride = 0  # Training steps of one compiled call.

  def collect(self, act: Act, until: int, step: int) -> None:
    """Collects the actors' answers, waits until there is enough experience, and gives new orders.

    Args:
      act: the policy, see `memory.Act`: a `tf.function`, the same one in every call.
      until: minimum environment steps since the beginning of the run.
      step: the next training step.

    Raises:
      RunFailed: an actor dies or an environment fails repeatedly.
    """
    self._note(step)
    if self._policy is None:
      e = self.environments
      self._policy = ExportedPolicy(act, e.observation_shape, e.observation_dtype,
                                    self._exploration.noise_size or e.action_size)
    state = self._current_state(self._policy)
    starts = state.starts
    ages: list[int] = []
    while True:
      ages += self._take_finished(self._policy, state, step)
      self._give_orders(self._policy, state, until, step)
      if state.environment_steps >= until and not self._is_any_too_old(step):
        break
      self._wait()
    state.policy_age = max(ages, default=state.policy_age)
    self._adder.flush()
    if ages or state.starts > starts:
      self.kept.write(state)

  def restored_together(self) -> list[Any]:
    """See `replicator.step.variables.together_in`."""
    return [self.replay, self.kept.of_streams(), *([self.rewards.running] if self.rewards else [])]

  def scalars(self) -> dict[str, tf.Tensor]:
    """Returns the progress of acting for logging, []; see `SavedState.scalars`."""
    return self.kept.scalars("environment_steps", "policy_age", "deaths")

  def close(self) -> None:
    """Ends all actors. The next `collect` starts new ones."""
    for member in self._members:
      member.process.close()
    self._members.clear()
    self._adder.discard()
    self._state = None

  # ---- Orders and answers -----------------------------------------------------------------------

  def _give_orders(self, policy: ExportedPolicy, state: PoolState, until: int, step: int) -> None:
    """Gives idle actors orders, unless their steps would exceed the limit."""
    size = self._environments_each * self._steps_per_order * self.environments.frames_per_step
    ordered = size * sum(member.version is not None for member in self._members)
    limit = until + size * self._processes
    weights = b""
    for member in self._members:
      if member.running or state.environment_steps + ordered + size > limit:
        continue
      weights = weights or pickle.dumps(policy.weights())
      member.running, member.version = member.process.work(weights), step
      ordered += size

  def _is_any_too_old(self, step: int) -> bool:
    """Returns whether an order would be too old after the next call of the compiled steps."""
    return any(member.version is not None
               and step + self._stride - member.version > self._max_policy_age
               for member in self._members)

  def _wait(self) -> None:
    """Waits until an actor has answered, started or died, or `_PATIENCE` has elapsed."""
    running = [member.running for member in self._members if member.running]
    waited, look = 0.0, min(1.0, _PATIENCE)
    while not concurrent.futures.wait(running, look, concurrent.futures.FIRST_COMPLETED).done:
      if gives_up():
        raise GivenUp(f"{self.environments.name}: no actor answers")
      waited += look
      if waited >= _PATIENCE:
        self._warn(f"ActorPool: {len(running)} of {self._processes} actors sent nothing for "
                   f"{_PATIENCE:.0f} s; still waiting")
        return

  def _take_finished(self, policy: ExportedPolicy, state: PoolState, step: int) -> list[int]:
    """Collects all answers and replaces dead actors; returns the ages of the answered orders."""
    ages = []
    for member in self._members:
      if member.running is None or not member.running.done():
        continue
      running, version = member.running, member.version
      member.running = member.version = None
      try:
        answer = running.result()
      except member.process.DIED as error:
        self._replace(policy, state, member, member.process.cause_of_death(error))
        continue
      if version is not None:
        ages.append(step - version)
        self._take(state, member, answer)
    return ages

  def _take(self, state: PoolState, member: Member, answer: Answer) -> None:
    member.deaths = 0
    first = member.number * self._environments_each
    timesteps = answer.timesteps._replace(stream=answer.timesteps.stream + np.int32(first))
    self._adder.add(timesteps)
    state.is_open[timesteps.stream] = timesteps.flag != END  # The last one of a stream counts.
    state.observation[first:first + self._environments_each] = answer.observation
    state.environment_steps += answer.environment_steps
    state.episodes += answer.episodes
    state.recent_returns = np.append(state.recent_returns, answer.returns)[-RECENT:]
    for line in answer.warnings:
      self._warn(f"actor {member.number}: {line}")

  # ---- State, start and end of actors -----------------------------------------------------------

  def _current_state(self, policy: ExportedPolicy) -> PoolState:
    """Returns the state, rebuilt if a restored checkpoint or a rollback changed the variables."""
    state = self._state
    if state is None or not self.kept.holds(state, "environment_steps", "starts"):
      self.close()
      state = self.kept.read()
      self._end_episodes(state, np.arange(self.environments.number))
      for number in range(self._processes):
        self._members.append(Member(number, *self._started(policy, state, number)))
      self._state = state
      self.kept.write(state)
    return state

  def _replace(self, policy: ExportedPolicy, state: PoolState, member: Member, why: str) -> None:
    state.deaths += 1
    member.deaths += 1
    if member.deaths == _MAX_DEATHS:
      raise RunFailed(f"ActorPool: actor {member.number} died {_MAX_DEATHS} times without an "
                      f"answer in between; the last time: {why}")
    member.process, member.running = self._started(policy, state, member.number)
    self._warn(f"actor {member.number} died ({why}); it is replaced and starts new episodes; "
               f"actor deaths so far: {state.deaths}")
    first = member.number * self._environments_each
    self._end_episodes(state, np.arange(first, first + self._environments_each))

  def _started(self, policy: ExportedPolicy, state: PoolState, number: int
               ) -> tuple[Any, concurrent.futures.Future]:
    """Starts an actor with a new seed; returns its process, and the future of its start."""
    import cloudpickle  # Gymnasium depends on it.
    seed = np.random.SeedSequence([self._seed % 2**64, state.starts]).generate_state(1)
    state.starts += 1
    remaining = max(0, self._exploration.random_steps - state.environment_steps)
    exploration = dataclasses.replace(
        self._exploration, random_steps=remaining // self._processes, alpha=0.0,
        scale=tuple(np.split(self._scales, self._processes)[number]))
    process = PLACES[self._where](cloudpickle.dumps(
        Setup(self.environments.like(self._environments_each), policy.graph, policy.weights(),
              int(seed[0]), exploration, self._steps_per_order)))
    return process, process.started

  def _end_episodes(self, state: PoolState, streams: np.ndarray) -> None:
    """Ends the open episodes of some streams with their last known observations."""
    streams = streams[state.is_open[streams]]
    if len(streams):
      self._adder.add(ends(streams, state.observation, self.environments.action_size))
      state.is_open[streams] = False

  def _note(self, step: int) -> None:
    """Infers the number of training steps per compiled call."""
    if self._step is not None and step > self._step:
      self._stride = step - self._step
    self._step = step
    if self._stride > self._max_policy_age:
      raise UsageError(f"ActorPool.max_policy_age = {self._max_policy_age}: is less than "
                       f"train.steps_per_call = {self._stride}, but weights change only between "
                       "calls; use at least that")
