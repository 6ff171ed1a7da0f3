"""Acting in this process, in turns with training, so that a run can be resumed exactly.

An environment cannot be saved. But an episode is a function of the seed that it began with and of
the actions since: those are kept in variables, and after a restart the episodes are played again up
to where they were.
"""

import collections
import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import gin
import keras
import numpy as np
import tensorflow as tf

from models.rl.draws import Draws
from models.rl.environments import Environments, EnvironmentsLost, Outcome, merged
from models.rl.normalization import Normalizer
from models.rl.replay import CONTINUES, END, TERMINATED, Replay, Rows
from replicator.errors import RunFailed
from replicator.snapshot import copies_of

Act = Callable[[np.ndarray, np.ndarray], Any]
_CONTINUES, _TERMINATED = np.uint8(CONTINUES), np.uint8(TERMINATED)
RECENT = 10
_MOST_FAILURES = 10  # One after the other.


def warn(line: str) -> None:
  """Tells one line on the standard error."""
  print(line, file=sys.stderr, flush=True)


@dataclasses.dataclass
class _State:
  """Where acting is, each field kept in a variable; n environments, episodes of at most t steps.

  Attributes:
    environment_steps: of all environments together.
    episodes: finished ones.
    recent_returns: float64 [10], of the last finished episodes, at `episodes % 10`.
    episode: int64 [n], number of each environment's present episode.
    length: int64 [n], steps that were taken in it.
    actions: float32 [n, t, a], in these steps.
    observation: [n, *shape], present ones; never changed in place.
    episode_return: float64 [n], sum of the rewards so far.
  """

  environment_steps: int
  episodes: int
  recent_returns: np.ndarray
  episode: np.ndarray
  length: np.ndarray
  actions: np.ndarray
  observation: np.ndarray
  episode_return: np.ndarray


@gin.configurable(denylist=["environments", "replay", "normalizer", "seed", "warn"])
class Actor(tf.Module):
  """Acts in all environments together, and inserts what it saw into the replay.

  Every random number is a function of the seed and of the step. So processes whose networks are
  equal get equal rows, each from environments of its own.

  Args:
    environments: to act in; each is a stream of the replay.
    replay: gets the rows.
    normalizer: gets every observation; or None.
    seed: of all that is random here.
    random_steps: environment steps of uniformly random actions to begin with.
    warn: is called with one line when an environment fails.

  Attributes:
    environment_steps: int64 [], of all environments together; failed ones count.
    episodes: int64 [], that were finished.
    episode_return: float32 [], mean of the last 10 of them, 0 before there is one.
    recent_returns: float64 [10], of the last finished episodes, at `episodes % 10`.
    observation: [n, *shape], present ones, which are in no row yet.
  """

  def __init__(self, environments: Environments, replay: Replay,
               normalizer: Normalizer | None = None, seed: int = 0, random_steps: int = 1000,
               warn: Callable[[str], None] = warn):
    super().__init__()
    n, a = environments.number, environments.action_size
    self.environments, self.replay, self.normalizer = environments, replay, normalizer
    self._random_steps, self._warn = random_steps, warn
    self._draws = Draws(seed, n, a)
    start = _State(
        0, 0, np.zeros([RECENT]), np.zeros([n], np.int64), np.zeros([n], np.int64),
        np.zeros([n, environments.episode_steps, a], np.float32),
        np.zeros([n, *environments.observation_shape], environments.observation_dtype),
        np.zeros([n]))
    self._kept = {name: kept_variable(name, value) for name, value in vars(start).items()}
    self.environment_steps = self._kept["environment_steps"]
    self.episodes = self._kept["episodes"]
    self.recent_returns = self._kept["recent_returns"]
    self.observation = self._kept["observation"]
    self.episode_return = kept_variable("mean_return", np.float32(0))
    self._state: _State | None = None  # None: what is in the variables counts.
    self._changed = np.zeros(start.actions.shape[:2], bool)  # Which actions are not in them yet.
    self._rows: collections.deque[Rows] = collections.deque()  # tf.Module would wrap a list.
    self._all = np.arange(n, dtype=np.int32)
    self._failures = np.zeros([n], np.int64)  # Since the last good step.
    self._losses = 0

  def collect(self, act: Act, until: int, step: int = 0) -> None:
    """Acts until there were so many environment steps since the beginning of the run.

    All environments take each step together, so there may be up to n - 1 more.

    Args:
      act: `observations [n, *shape], noise float32 [n, a] -> [n, a]` in [-1, 1].
      until: environment steps.
      step: the training step that comes next, which means something to an `ActorPool`.

    Raises:
      RunFailed: an environment does nothing but fail; the policy's actions are not finite.
    """
    try:
      state = self._present_state()
      while state.environment_steps < until:
        self._advance(state, act)
    except BaseException:
      self._state = None  # Half a step was taken.
      self._rows.clear()
      raise
    if self._rows:
      deliver(self._rows, self.replay, self.normalizer)
      self._keep(state)

  def scalars(self) -> dict[str, tf.Tensor]:
    """How acting goes, for a step to log: floating []."""
    return {name: tf.cast(getattr(self, name), keras.config.floatx())
            for name in ("environment_steps", "episode_return")}

  def close(self) -> None:
    """Ends the environments."""
    self.environments.close()
    self._state = None

  # ---- Steps and episodes -----------------------------------------------------------------------

  def _advance(self, state: _State, act: Act) -> None:
    """One step of all environments, and new episodes where one ended."""
    actions = self._actions(state, act)
    outcome = self._step(state, actions)
    state.environment_steps += self.environments.number
    state.actions[self._all, state.length] = actions
    self._changed[self._all, state.length] = True
    state.length += 1
    rows = Rows(self._all, state.observation, actions, outcome.reward.astype(np.float32),
                np.where(outcome.terminated, _TERMINATED, _CONTINUES))
    if outcome.failures:
      self._end_failed(state, outcome, rows)
    else:
      self._rows.append(rows)
      self._failures[:], self._losses = 0, 0
      state.episode_return += outcome.reward
      state.observation = outcome.observation
      ended = outcome.terminated | outcome.truncated
      if ended.any():
        self._finish(state, ended)

  def _end_failed(self, state: _State, outcome: Outcome, rows: Rows) -> None:
    """The step of the environments that did not fail, and the end of the episodes that did."""
    good = ~np.isin(self._all, list(outcome.failures))
    self._rows.append(Rows(*(part[good] for part in rows)))
    for i, why in outcome.failures.items():
      self._tell(state, i, why)
    self._failures[good] = 0
    state.episode_return[good] += outcome.reward[good]
    # After a failure the last good observation is the end.
    state.observation = merged(good, outcome.observation, state.observation)
    self._finish(state, good & (outcome.terminated | outcome.truncated))
    self._end(state, np.flatnonzero(~good))

  def _finish(self, state: _State, ended: np.ndarray) -> None:
    """Counts episodes that ended as they should, and begins new ones; ended: bool [n]."""
    which = np.flatnonzero(ended)
    for episode_return in state.episode_return[which]:
      state.recent_returns[state.episodes % RECENT] = episode_return
      state.episodes += 1
    if len(which):
      self._end(state, which)

  def _actions(self, state: _State, act: Act) -> np.ndarray:
    step = state.environment_steps // self.environments.number
    if state.environment_steps < self._random_steps:
      return self._draws.random_actions(step)
    actions = np.asarray(act(state.observation, self._draws.noise(step)), np.float32)
    if not np.isfinite(actions).all():
      raise RunFailed("the policy's actions are not finite at environment step "
                      f"{state.environment_steps}")
    return actions

  def _step(self, state: _State, actions: np.ndarray) -> Outcome:
    while True:
      try:
        return self.environments.step(actions)
      except EnvironmentsLost as error:
        self._tell_loss(error)
        self._play_again(state)

  def _end(self, state: _State, which: np.ndarray) -> None:
    """Ends the episodes of some environments where they are, and begins new ones."""
    k, a = len(which), state.actions.shape[2]
    self._rows.append(Rows(which.astype(np.int32), state.observation[which],
                           np.zeros([k, a], np.float32), np.zeros([k], np.float32),
                           np.full([k], END, np.uint8)))
    self._begin(state, which)

  def _begin(self, state: _State, which: np.ndarray) -> None:
    while len(which):
      state.episode[which] += 1
      state.length[which], state.episode_return[which] = 0, 0.0
      try:
        observation, failures = self.environments.reset(self._seeds(state, which))
      except EnvironmentsLost as error:
        self._tell_loss(error)
        self._play_again(state)
        return
      begun = np.isin(self._all, which)
      state.observation = merged(begun, observation, state.observation)
      for i, why in failures.items():
        self._tell(state, i, why)
      which = np.array(list(failures), np.int64)

  # ---- Where it was before ----------------------------------------------------------------------

  def _present_state(self) -> _State:
    """That of the variables, which a restored checkpoint or a step back may have changed."""
    state = self._state
    if state is None or not all(np.array_equal(value_of(self._kept[name]), getattr(state, name))
                                for name in ("environment_steps", "episode", "episode_return")):
      values: dict[str, Any] = {}
      for name, variable in self._kept.items():
        value = value_of(variable)
        values[name] = value if value.ndim else int(value)
      state = _State(**values)
      self._changed[:] = False
      self._play_again(state)
      self._state = state
    return state

  def _play_again(self, state: _State) -> None:
    """Plays all present episodes again; one that turns out otherwise is ended where it was."""
    while True:
      try:
        observation, returns, failures = self._played(state)
        break
      except EnvironmentsLost as error:
        self._tell_loss(error)
    again = state.length > 0
    same = np.array([i not in failures and returns[i] == state.episode_return[i]
                     and observation[i].tobytes() == state.observation[i].tobytes()
                     for i in range(len(again))])
    state.observation = merged(again, state.observation, observation)
    for i in _numbers(again & ~same):
      self._warn(f"{self.environments.name}: environment {i} is not deterministic (or another "
                 f"version): its episode {state.episode[i]}, played again for {state.length[i]} "
                 "steps, came out otherwise, so the run does not resume exactly; a new one begins")
    for i, why in failures.items():
      if not again[i]:
        self._tell(state, i, why)
        self._begin(state, np.array([i]))
    if (again & ~same).any():
      self._end(state, np.flatnonzero(again & ~same))

  def _played(self, state: _State) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
    """Observations [n, *shape], returns [n], and what could not be played to where it was."""
    environments = self.environments
    observation, failures = environments.reset(self._seeds(state, self._all))
    returns = np.zeros([environments.number])
    for k in range(int(state.length.max())):
      active = k < state.length
      active[list(failures)] = False
      outcome = environments.step(state.actions[:, k], active)
      observation, returns = outcome.observation, returns + outcome.reward
      over = active & (outcome.terminated | outcome.truncated)
      failed = {**dict.fromkeys(_numbers(over), "it ended"), **outcome.failures}
      if failed:
        failures.update(failed)
        environments.reset(self._seeds(state, np.array(list(failed))))
    return observation, returns, failures

  def _keep(self, state: _State) -> None:
    """Writes the state into the variables, every copy of them."""
    where = np.argwhere(self._changed)
    for name, variable in self._kept.items():
      for copy in copies_of(variable):
        if name == "actions":
          _scatter(copy, where, state.actions[self._changed])
        else:
          copy.assign(getattr(state, name))
    self._changed[:] = False
    recent = state.recent_returns[:state.episodes]
    for copy in copies_of(self.episode_return):
      copy.assign(np.float32(recent.mean() if len(recent) else 0))

  def _seeds(self, state: _State, which: np.ndarray) -> dict[int, int]:
    return {int(i): self._draws.episode_seed(int(i), int(state.episode[i])) for i in which}

  # ---- Failures ---------------------------------------------------------------------------------

  def _tell(self, state: _State, i: int, why: str) -> None:
    self._warn(f"{self.environments.name}: environment {i}, episode {state.episode[i]}, step "
               f"{state.length[i]}: {why}; the episode ends there, and a new one begins")
    self._failures[i] += 1
    if self._failures[i] == _MOST_FAILURES:
      raise RunFailed(f"{self.environments.name}: environment {i} failed {_MOST_FAILURES} times "
                      f"without a good step in between; the last time: {why}")

  def _tell_loss(self, error: EnvironmentsLost) -> None:
    self._losses += 1
    if self._losses == _MOST_FAILURES:
      raise RunFailed(f"{error}, {_MOST_FAILURES} times without a good step in between")
    self._warn(f"{error}; all are made anew, and go on where they were")


def deliver(parts: collections.deque[Rows], replay: Replay, normalizer: Normalizer | None) -> None:
  """Inserts rows that came in parts; takes the parts away."""
  rows = Rows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
  parts.clear()
  replay.insert(rows)
  if normalizer is not None:
    normalizer.update(rows.observation)


def kept_variable(name: str, value: Any) -> tf.Variable:
  """A variable that begins as `value`, with a copy on every replica."""
  return tf.Variable(value, trainable=False, dtype=np.asarray(value).dtype, name=name,
                     aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)


@tf.function(autograph=False, reduce_retracing=True)
def _scatter(variable: tf.Variable, where: tf.Tensor, values: tf.Tensor) -> None:
  # Compiled: eagerly TensorFlow cannot do it to a variable of a parameter server.
  variable.scatter_nd_update(where, values)


def value_of(variable: tf.Variable) -> np.ndarray:
  """A copy, which may be changed."""
  return np.array(copies_of(variable)[0].read_value())


def _numbers(mask: np.ndarray) -> list[int]:
  """Where a mask [n] is True."""
  return np.flatnonzero(mask).tolist()
