"""Evaluation of an agent without exploration: metrics, and a picture of one episode."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import replicator
from models.rl.acting.action_noise import evaluation_noise, evaluation_seed
from models.rl.acting.actor import warn
from models.rl.acting.episode_picture import picture_of
from models.rl.acting.info_numbers import InfoNumbers
from models.rl.acting.memory import acted, empty
from models.rl.environments.environments import Environments
from models.rl.environments.outcome import merged
from models.rl.environments.vector import EnvironmentsLost
from replicator import UsageError
from replicator.errors import RunFailed, at_least_one

import gin
import numpy as np

_ATTEMPTS = 3


@dataclasses.dataclass
class Steps:
  """The t steps of an episode so far."""

  keeps_images: bool  # Images could fill the memory.
  observations: list[np.ndarray] = dataclasses.field(default_factory=list)  # t + 1, `[*shape]`.
  actions: list[np.ndarray] = dataclasses.field(default_factory=list)  # float32 `[action_size]`.
  rewards: list[float] = dataclasses.field(default_factory=list)
  terminated: bool = False

  def add(self, before: np.ndarray, action: np.ndarray, reward: float, after: np.ndarray,
          terminated: bool) -> None:
    """Adds a step between two observations."""
    if before.ndim == 1 or self.keeps_images:
      self.observations[-1:] = [before.copy(), after.copy()]
    self.actions.append(action)
    self.rewards.append(reward)
    self.terminated = bool(terminated)


@dataclasses.dataclass
class Episodes:
  """The episodes of an evaluation."""

  returns: np.ndarray  # float64 `[episodes]`; NaN if the environment failed.
  lengths: np.ndarray  # int64 `[episodes]`, in steps.
  steps: list[Steps]  # Of the first episode, or of all.
  info: dict[str, np.ndarray]  # Numbers of `EpisodeEvaluator.info`, float64 [episodes].


@gin.configurable(denylist=["make_environments", "warn"])
class EpisodeEvaluator:
  """Evaluator that plays whole episodes greedily, with the same seeds in every evaluation.

  Training uses neither these seeds nor the noise of sampled actions. Equal weights give equal
  results.

  Args:
    make_environments: makes environments; the evaluator plays in separate ones of the same kind.
    episodes: number of episodes.
    sampled: whether to also play the episodes with actions sampled from the policy. If observations
      do not distinguish all states, the best policy may be stochastic.
    info: numbers in the `info` of steps to report, by name, each with 'last', 'max', 'mean' or
      'sum' over the steps of an episode; None for `is_success` at its end, if available.
    picture: whether to draw the first episode: a strip of its frames, or curves if it cannot be
      rendered.
    environments: number of environments that play the episodes; None for one per episode, or
      `Environments.number` for those that need processes, as with pixels.
    lifetime: 'run' keeps the environments open between evaluations; 'evaluation' closes them after
      each; 'alone' also closes the actor's environments before each, for a simulator that can exist
      only once. The actor then replays its current episodes.
    warn: called with one line when an environment fails.
    kwargs: arguments of the evaluation environments; None for those of training.
    wrappers: their wrappers; None for those of training, which may end episodes early or change
      rewards.

  Raises:
    UsageError: a setting is invalid.
  """

  def __init__(self, make_environments: Callable[[], Environments], episodes: int = 20,
               picture: bool = True, environments: int | None = None,
               lifetime: Literal["run", "evaluation", "alone"] = "run",
               warn: Callable[[str], None] = warn, kwargs: Mapping[str, Any] | None = None,
               wrappers: Mapping[str, Mapping[str, Any]] | None = None, sampled: bool = False,
               info: Mapping[str, str] | None = None):
    at_least_one("EpisodeEvaluator", episodes=episodes, environments=environments)
    if lifetime not in ("run", "evaluation", "alone"):
      raise UsageError(f"EpisodeEvaluator.lifetime = {lifetime!r}: write 'run', 'evaluation' or "
                       "'alone'")
    self._make_environments, self._number, self._lifetime = (
        make_environments, environments, lifetime)
    self._episodes, self._picture, self._warn = episodes, picture, warn
    self._kwargs, self._wrappers, self._sampled = kwargs, wrappers, sampled
    self._info = InfoNumbers(info, "EpisodeEvaluator.info")
    self._environments: Environments | None = None

  def __call__(self, agent: Any) -> replicator.Evaluation:
    """Returns mean, standard deviation, minimum and maximum of the returns, and mean length.

    Also returns the means of the `info` numbers. Scalars of sampled actions have separate names,
    such as `return_sampled`.

    Raises:
      RunFailed: the agent's actions are not finite.
      UsageError: the environment has no such number in its `info`.
    """
    played = self.play(agent)
    environments, scalars = self.environments, _scalars(played)
    method = f"{self._counted(played)} with greedy actions, "
    if self._sampled:
      sampled = self.play(agent, sampled=True)
      scalars.update(_scalars(sampled, "_sampled"))
      method += f"{self._counted(sampled)} with sampled ones, "
    images, kind = {}, "no picture"
    first = played.steps[0]
    if self._picture and first.actions:
      images["samples"], kind = picture_of(
          environments.settings, evaluation_seed(0), np.stack(first.actions),
          np.array(first.rewards), first.observations)
    return replicator.Evaluation(
        scalars, images, f"{environments.name}{environments.wrapped}: {method}using separate "
        f"seeds, the same in every evaluation; {kind}")

  def close(self) -> None:
    """Closes the environments. The next evaluation makes new ones."""
    if self._environments is not None:
      self._environments.close()

  def play(self, agent: Any, sampled: bool = False, keep_all: bool = False) -> Episodes:
    """Plays all episodes, with greedy or with sampled actions.

    Keeps the steps of the first episode, without observations if these are images. With `keep_all`
    it keeps all steps of all episodes.

    Raises:
      RunFailed: the agent's actions are not finite, or the environments die repeatedly.
      UsageError: the environment has no such number in its `info`.
    """
    if self._lifetime == "alone":
      agent.actor.close()
    environments = self.environments
    for attempt in range(_ATTEMPTS):
      try:
        played = self._play(agent, environments, sampled, keep_all)
        break
      except EnvironmentsLost as error:
        if attempt == _ATTEMPTS - 1:
          raise RunFailed(f"evaluation: {error}; it failed {_ATTEMPTS} times") from error
        self._warn(f"evaluation: {error}; it starts again")
    if self._lifetime != "run":
      self.close()
    return played

  @property
  def environments(self) -> Environments:
    """The evaluation environments, made on first use.

    Raises a UsageError if their observations or actions do not match those of training.
    """
    if self._environments is None:
      made = self._make_environments()
      number = self._number or (made.number if made.in_processes else self._episodes)
      found = made.like(min(self._episodes, number), self._kwargs, self._wrappers,
                        self._info.names)
      wanted, seen = ((e.observation_shape, e.observation_dtype, e.action_size, e.choices)
                      for e in (made, found))
      if wanted != seen:
        raise UsageError("EpisodeEvaluator.wrappers, kwargs: the environments have observations of "
                         f"{found.observation_dtype} {list(found.observation_shape)} and actions "
                         f"of length {found.action_size}, but training has "
                         f"{made.observation_dtype} {list(made.observation_shape)} and "
                         f"{made.action_size}; change only how episodes end or are rewarded")
      self._environments = found
    return self._environments

  def _play(self, agent: Any, environments: Environments, sampled: bool, keep_all: bool
            ) -> Episodes:
    """Plays all episodes. An environment whose episode ended plays the next one."""
    n = environments.number
    kept = self._episodes if keep_all else 1
    played = Episodes(np.zeros([self._episodes]), np.zeros([self._episodes], np.int64),
                      [Steps(keep_all) for _ in range(kept)], {})
    draws = [evaluation_noise(episode) for episode in range(self._episodes)] if sampled else []
    self._info.begin(self._episodes)
    noise = np.zeros([n, getattr(agent, "noise_size", environments.action_size)], np.float32)
    memory = empty(n, getattr(agent, "memory_size", 0))
    number = np.full([n], -1)  # The episode of each environment; past the last one: none.
    observation = np.zeros([n, *environments.observation_shape], environments.observation_dtype)
    ended = np.ones([n], bool)
    while True:
      observation, number = self._next(environments, ended, observation, number, played)
      playing = number < self._episodes
      if not playing.any():
        if played.lengths.any():
          played.info = self._info.found(environments.name)
        return played
      if memory is not None:
        memory[ended] = 0.0
      for i in np.flatnonzero(playing & sampled).tolist():
        noise[i] = draws[number[i]].standard_normal(noise.shape[1], np.float32)
      actions, memory = acted(agent.act, environments.action_size, observation, noise, memory)
      if not np.isfinite(actions[playing]).all():
        raise RunFailed("evaluation: the agent's actions are not finite")
      outcome = environments.step(actions, playing)
      for line in outcome.warnings:
        self._warn(f"evaluation: {line}")
      failed = np.isin(np.arange(n), list(outcome.failures))
      for i, why in outcome.failures.items():
        self._drop(played, environments.name, number[i], why)
      good = playing & ~failed
      for i in np.flatnonzero(good & (number < kept)).tolist():
        played.steps[number[i]].add(observation[i], actions[i], outcome.reward[i],
                                    outcome.observation[i], outcome.terminated[i])
      played.returns[number[good]] += outcome.reward[good]
      played.lengths[number[good]] += 1
      self._info.add(number[good], {name: x[good] for name, x in outcome.info.items()})
      ended = playing & (outcome.terminated | outcome.truncated | failed)
      observation = outcome.observation

  def _next(self, environments: Environments, ended: np.ndarray, observation: np.ndarray,
            number: np.ndarray, played: Episodes) -> tuple[np.ndarray, np.ndarray]:
    """Starts the next episodes where one ended; returns observations and episode numbers [n]."""
    number = number.copy()
    which = np.flatnonzero(ended).tolist()
    while which:
      for i in which:
        number[i] = number.max() + 1
      # Reset even if no episode is left: an environment must not stay at the end of an episode.
      begun, failures = environments.reset({i: evaluation_seed(int(number[i])) for i in which})
      observation = merged(np.isin(np.arange(len(number)), which), begun, observation)
      for i, why in failures.items():
        self._drop(played, environments.name, number[i], why)
      which = [i for i in failures if number[i] < self._episodes]
    return observation, number

  def _counted(self, played: Episodes) -> str:
    whole = int(np.sum(~np.isnan(played.returns)))
    return (f"{whole} whole episodes" if whole == self._episodes else
            f"{whole} of {self._episodes} episodes (the rest failed)")

  def _drop(self, played: Episodes, name: str, episode: int, why: str) -> None:
    if episode >= self._episodes:
      return
    played.returns[episode] = np.nan
    self._warn(f"evaluation: {name}, episode {episode}: {why}; the episode does not count")


def _scalars(played: Episodes, suffix: str = "") -> dict[str, float]:
  """Returns statistics of the complete episodes; NaN if there are none."""
  is_whole = ~np.isnan(played.returns)
  returns, lengths = ((values[is_whole] if is_whole.any() else np.array([np.nan]))
                      for values in (played.returns, played.lengths))
  of_info = {name: values[is_whole & ~np.isnan(values)] for name, values in played.info.items()}
  found = {**{f"{name}{suffix}": values.mean() for name, values in of_info.items() if len(values)},
           f"return{suffix}": returns.mean(), f"return{suffix}_std": returns.std(),
           f"return{suffix}_min": returns.min(), f"return{suffix}_max": returns.max(),
           f"episode_length{suffix}": lengths.mean()}
  return {name: float(value) for name, value in found.items()}
