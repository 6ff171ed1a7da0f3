"""Acting in other processes, which goes on while the learner trains.

The learner gives each actor one order at a time: so many steps, with the weights of that moment.
It takes in what was answered between the calls of its compiled steps, and waits only when there is
too little experience, or an order has become too old. An actor that dies is replaced.
"""

import collections
import concurrent.futures
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any, Literal

import gin
import keras
import numpy as np
import tensorflow as tf

import replicator
from models.rl import actor as actors
from models.rl.actor_process import Answer, LocalActor, Order, Setup
from models.rl.environments import Environments
from models.rl.exported_policy import Act, ExportedPolicy
from models.rl.saved_state import RECENT, SavedState, mean_return
from models.rl.normalization import Normalizer
from models.rl.ray_actors import RayActor
from models.rl.replay import END, Replay, Timesteps
from models.rl.timesteps import ends
from replicator import UsageError
from replicator.errors import RunFailed

_MOST_DEATHS = 5  # Of one actor, without an answer in between.
_PATIENCE = 60.0  # Seconds.
_PLACES: dict[str, Callable[[bytes], Any]] = {"local": LocalActor, "ray": RayActor}


@dataclasses.dataclass
class _State:
  """Where acting is; n environments.

  Attributes:
    environment_steps: int64 [].
    episodes: int64 [], finished ones.
    recent_returns: float64 [10], of the last finished episodes, the newest last.
    starts: int64 [], how many actors were ever started.
    deaths: int64 [], how many of them died.
    policy_age: int64 [], see `ActorPool`.
    observation: [n, *shape], present ones, which are in no row yet.
    is_open: bool [n], whether the last row of a stream waits for the next observation.
  """

  environment_steps: int
  episodes: int
  recent_returns: np.ndarray
  starts: int
  deaths: int
  policy_age: int
  observation: np.ndarray
  is_open: np.ndarray


@dataclasses.dataclass
class _Member:
  """One actor.

  Attributes:
    number: which.
    process: where it is.
    running: its start or its order; None when it has nothing to do.
    version: the training step of the order's weights; None when it has no order.
    deaths: since its last answer.
  """

  number: int
  process: Any
  running: concurrent.futures.Future | None
  version: int | None = None
  deaths: int = 0


@gin.configurable(denylist=["environments", "replay", "normalizer", "processes", "seed", "warn"])
class ActorPool(tf.Module):
  """N actors in processes of their own; does what `Actor` does, while the learner trains.

  No run is like another bit for bit: which weights an actor has depends on how fast all are. One
  that is resumed begins new episodes.

  Args:
    environments: to act in, divided evenly among the actors; each is a stream of the replay.
    replay: gets the rows.
    normalizer: gets every observation; or None.
    processes: how many actors.
    seed: of all that is random here.
    where: 'local': processes of this machine; 'ray': a cluster of Ray, see `ray_actors`.
    steps_per_order: of each environment. The replay gets at most so many steps of all environments
      before the learner is due to have them.
    max_policy_age: training steps. The learner waits for an actor whose weights would become
      older than that.
    random_steps: environment steps of uniformly random actions to begin with.
    warn: is called with one line when an actor or an environment fails.

  Attributes:
    kept: where it is.
    environment_steps: int64 [], of all environments together; failed ones count.
    episodes: int64 [], that were finished.
    policy_age: int64 [], how many training steps there were between the oldest order whose rows
      were taken in last, and that moment.
    deaths: int64 [], how many actors died.
  """

  def __init__(self, environments: Environments, replay: Replay, normalizer: Normalizer | None,
               processes: int, seed: int = 0, where: Literal["local", "ray"] = "local",
               steps_per_order: int = 50, max_policy_age: int = 500, random_steps: int = 1000,
               warn: Callable[[str], None] = actors.warn):
    super().__init__()
    _check(environments, processes, where, steps_per_order, max_policy_age)
    self.environments, self.replay, self.normalizer = environments, replay, normalizer
    self._processes, self._seed, self._where = processes, seed, where
    self._steps_per_order, self._max_policy_age = steps_per_order, max_policy_age
    self._random_steps, self._warn = random_steps, warn
    n = environments.number
    self._each = n // processes  # Environments.
    start = _State(0, 0, np.zeros([RECENT]), 0, 0, 0,
                   np.zeros([n, *environments.observation_shape], environments.observation_dtype),
                   np.zeros([n], bool))
    self.kept = SavedState(start)
    self.environment_steps, self.episodes, self.policy_age, self.deaths = (
        self.kept.fields[name] for name in ("environment_steps", "episodes", "policy_age",
                                            "deaths"))
    self._policy: ExportedPolicy | None = None
    self._state: _State | None = None  # None: what is in the variables counts.
    self._members: collections.deque[_Member] = collections.deque()  # tf.Module would wrap a list.
    self._rows: collections.deque[Timesteps] = collections.deque()
    self._step: int | None = None
    self._stride = 0

  @property
  def episode_return(self) -> tf.Tensor:
    """Floating [], mean of the last 10 finished episodes, 0 before there is one."""
    return mean_return(self.kept.fields["recent_returns"], self.episodes)

  def collect(self, act: Act, until: int, step: int) -> None:
    """Takes in what was acted, waits until it is enough, and has the actors go on.

    Args:
      act: a `tf.function`: `observations [n, *shape], noise float32 [n, a] -> [n, a]` in [-1, 1];
        always the same.
      until: environment steps since the beginning of the run, at least.
      step: the training step that comes next.

    Raises:
      RunFailed: an actor dies all the time; an environment does nothing but fail.
    """
    self._note(step)
    state = self._present_state(act)
    starts = state.starts
    ages: list[int] = []
    while True:
      ages += self._take_finished(state, step)
      self._give(state, until, step)
      if state.environment_steps >= until and not self._is_any_too_old(step):
        break
      self._wait()
    state.policy_age = max(ages, default=state.policy_age)
    if self._rows:
      actors.deliver(self._rows, self.replay, self.normalizer)
    if ages or state.starts > starts:
      self.kept.write(state)

  def scalars(self) -> dict[str, tf.Tensor]:
    """How acting goes, for a step to log: floating []."""
    counts = {name: tf.cast(getattr(self, name), keras.config.floatx())
              for name in ("environment_steps", "policy_age", "deaths")}
    return {**counts, "episode_return": self.episode_return}

  def close(self) -> None:
    """Ends all actors; the next `collect` starts others."""
    for member in self._members:
      member.process.close()
    self._members.clear()
    self._rows.clear()
    self._state = None

  # ---- Orders and answers -----------------------------------------------------------------------

  def _give(self, state: _State, until: int, step: int) -> None:
    """Gives actors without an order one, if all of it may be made by now."""
    size = self._each * self._steps_per_order
    ordered = size * sum(member.version is not None for member in self._members)
    most = until + size * self._processes
    order: Order | None = None
    assert self._policy is not None
    for member in self._members:
      if member.running or state.environment_steps + ordered + size > most:
        continue
      order = order or Order(self._steps_per_order, pickle.dumps(self._policy.weights()))
      member.running, member.version = member.process.work(order), step
      ordered += size

  def _is_any_too_old(self, step: int) -> bool:
    """Whether an order would be too old when the next call of the compiled steps is over."""
    return any(member.version is not None
               and step + self._stride - member.version > self._max_policy_age
               for member in self._members)

  def _wait(self) -> None:
    """Until an actor has answered, started or died."""
    running = [member.running for member in self._members if member.running]
    done, _ = concurrent.futures.wait(running, _PATIENCE, concurrent.futures.FIRST_COMPLETED)
    if not done:
      self._warn(f"ActorPool: nothing came from {len(running)} of {self._processes} actors for "
                 f"{_PATIENCE:.0f} s; still waiting")

  def _take_finished(self, state: _State, step: int) -> list[int]:
    """Returns the ages of the orders that were answered."""
    ages = []
    for member in self._members:
      if member.running is None or not member.running.done():
        continue
      running, version = member.running, member.version
      member.running = member.version = None
      try:
        answer = running.result()
      except member.process.DIED as error:
        self._replace(state, member, error)
        continue
      if version is not None:
        ages.append(step - version)
        self._take(state, member, answer)
    return ages

  def _take(self, state: _State, member: _Member, answer: Answer) -> None:
    member.deaths = 0
    first = member.number * self._each
    rows = answer.rows._replace(stream=answer.rows.stream + np.int32(first))
    self._rows.append(rows)
    state.is_open[rows.stream] = rows.flag != END  # Of several, the last counts.
    state.observation[first:first + self._each] = answer.observation
    state.environment_steps += answer.environment_steps
    state.episodes += answer.episodes
    state.recent_returns = np.append(state.recent_returns, answer.returns)[-RECENT:]
    for line in answer.warnings:
      self._warn(f"actor {member.number}: {line}")

  # ---- Lives and deaths -------------------------------------------------------------------------

  def _present_state(self, act: Act) -> _State:
    """That of the variables, which a restored checkpoint or a step back may have changed."""
    if self._policy is None:
      e = self.environments
      self._policy = ExportedPolicy(act, e.observation_shape, e.observation_dtype, e.action_size)
      self._their_environments = e.like(self._each)
    state = self._state
    if state is None or not self.kept.holds(state, "environment_steps", "starts"):
      self.close()
      state = self.kept.read()
      self._cut(state, np.arange(self.environments.number))
      for number in range(self._processes):
        self._members.append(_Member(number, *self._started(state)))
      self._state = state
      self.kept.write(state)
    return state

  def _started(self, state: _State) -> tuple[Any, concurrent.futures.Future]:
    """An actor like no other before: its process, and the future of its start."""
    import cloudpickle  # Comes with Gymnasium.
    assert self._policy is not None
    seed = np.random.SeedSequence([self._seed % 2**64, state.starts]).generate_state(1)
    state.starts += 1
    random_steps = max(0, self._random_steps - state.environment_steps) // self._processes
    setup = Setup(self._their_environments, self._policy.graph, self._policy.weights(),
                  int(seed[0]), random_steps)
    process = _PLACES[self._where](cloudpickle.dumps(setup))
    return process, process.started

  def _replace(self, state: _State, member: _Member, error: Exception) -> None:
    why = member.process.cause_of_death(error)
    state.deaths += 1
    member.deaths += 1
    if member.deaths == _MOST_DEATHS:
      raise RunFailed(f"ActorPool: actor {member.number} died {_MOST_DEATHS} times without an "
                      f"answer in between; the last time: {why}")
    self._warn(f"actor {member.number} died ({why}); another takes its place, with new episodes; "
               f"deaths of actors so far: {state.deaths}")
    first = member.number * self._each
    self._cut(state, np.arange(first, first + self._each))
    member.process, member.running = self._started(state)

  def _cut(self, state: _State, streams: np.ndarray) -> None:
    """Ends the episodes of some streams with the last observations that are known."""
    streams = streams[state.is_open[streams]]
    if len(streams):
      self._rows.append(ends(streams, state.observation, self.environments.action_size))
      state.is_open[streams] = False

  def _note(self, step: int) -> None:
    """Learns how many steps a call of the compiled steps has."""
    if self._step is not None and step > self._step:
      self._stride = step - self._step
    self._step = step
    if self._stride > self._max_policy_age:
      raise UsageError(f"ActorPool.max_policy_age = {self._max_policy_age}: is less than "
                       f"train.steps_per_call = {self._stride}, and weights change between two "
                       "calls alone; write at least that")


def _check(environments: Environments, processes: int, where: str, steps_per_order: int,
           max_policy_age: int) -> None:
  if processes < 1 or environments.number % processes:
    raise UsageError(f"make_actor.processes = {processes}: Environments.number = "
                     f"{environments.number} cannot be divided evenly among them; change one "
                     "of the two")
  if where not in _PLACES:
    raise UsageError(f"ActorPool.where = {where!r}: write 'local' or 'ray'")
  if steps_per_order < 1 or max_policy_age < 1:
    raise UsageError(f"ActorPool.steps_per_order = {steps_per_order}, max_policy_age = "
                     f"{max_policy_age}: must both be at least 1")
  if replicator.Replicator().num_pipelines > 1:
    raise UsageError(f"make_actor.processes = {processes}: actors in processes feed a learner of "
                     "one process, and this run has several; write 0, and each of them acts")
