"""Evaluation of an agent without exploration: numbers, and a picture of one episode."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import replicator
from models.rl.acting.action_noise import evaluation_seed
from models.rl.acting.actor import warn
from models.rl.acting.memory import acted, empty
from models.rl.environments import rendering
from models.rl.environments.environments import Environments, EnvironmentsLost, merged
from replicator.errors import RunFailed, at_least_one

import gin
import numpy as np
from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
  from models.rl.environments.wrapper import EnvironmentSettings

_ATTEMPTS = 3
_ROWS, _COLUMNS = 2, 8
_HEIGHT, _CAPTION, _GAP = 120, 14, 2  # Pixels of a frame, of its caption, and between frames.
_MAX_CURVES = 24


@dataclasses.dataclass
class Episodes:
  """The episodes of an evaluation."""

  returns: np.ndarray  # float64 `[episodes]`; NaN for one in which the environment failed.
  lengths: np.ndarray  # int64 `[episodes]`, in steps.
  observations: list[np.ndarray]  # At which it acted in the first episode; none if images.
  actions: list[np.ndarray]  # In the first episode, float32 `[action_size]` each.
  rewards: list[float]  # In the first episode.


@gin.configurable(denylist=["make_environments", "warn"])
class EpisodeEvaluator:
  """Plays whole episodes with an agent's greedy actions, with the same seeds in every evaluation.

  Training never uses these seeds. Equal weights give equal numbers.

  Args:
    make_environments: makes environments of the kind to evaluate in. The evaluator plays in others
      of that kind.
    episodes: how many episodes.
    picture: whether to draw the first episode: a strip of its frames, or curves where it cannot be
      rendered.
    warn: called with one line when an environment fails.
  """

  def __init__(self, make_environments: Callable[[], Environments], episodes: int = 20,
               picture: bool = True, warn: Callable[[str], None] = warn):
    at_least_one("EpisodeEvaluator", episodes=episodes)
    self._make_environments = make_environments
    self._episodes, self._picture, self._warn = episodes, picture, warn
    self._environments: Environments | None = None

  def __call__(self, agent: Any) -> replicator.Evaluation:
    """Scalars: mean, standard deviation, minimum and maximum of the returns, and mean length.

    Raises:
      RunFailed: the agent's actions are not finite.
    """
    played = self.play(agent)
    environments = self._opened()
    is_whole = ~np.isnan(played.returns)
    # Without a whole episode, all are NaN.
    returns, lengths = ((values[is_whole] if is_whole.any() else np.array([np.nan]))
                        for values in (played.returns, played.lengths))
    images, kind = {}, "no picture"
    if self._picture and played.actions:
      images["samples"], kind = _strip_or_curves(environments.settings, played)
    method = (f"{environments.name}: {self._episodes} whole episodes of greedy actions, with "
              f"seeds of their own that are the same in every evaluation; {kind}")
    scalars = {"return": returns.mean(), "return_std": returns.std(), "return_min": returns.min(),
               "return_max": returns.max(), "episode_length": lengths.mean()}
    return replicator.Evaluation({name: float(value) for name, value in scalars.items()}, images,
                                 method)

  def close(self) -> None:
    """Closes the environments. The next evaluation makes new ones."""
    if self._environments is not None:
      self._environments.close()

  def play(self, agent: Any) -> Episodes:
    """Plays all episodes.

    Raises:
      RunFailed: the agent's actions are not finite, or the environments are lost again and again.
    """
    environments = self._opened()
    for _ in range(_ATTEMPTS):
      try:
        return self._play(agent, environments)
      except EnvironmentsLost as error:
        self._warn(f"evaluation: {error}; it starts again")
    raise RunFailed(f"evaluation: {environments.name} was lost {_ATTEMPTS} times")

  def _opened(self) -> Environments:
    if self._environments is None:
      made = self._make_environments()
      # With pixels each environment needs a process of its own.
      self._environments = made.like(
          min(self._episodes, made.number if made.settings.pixels else self._episodes))
    return self._environments

  def _play(self, agent: Any, environments: Environments) -> Episodes:
    """Plays all episodes. An environment whose episode ended plays the next one."""
    n = environments.number
    played = Episodes(np.zeros([self._episodes]), np.zeros([self._episodes], np.int64), [], [], [])
    noise = np.zeros([n, getattr(agent, "noise_size", environments.action_size)], np.float32)
    memory = empty(n, getattr(agent, "memory_size", 0))
    number = np.full([n], -1)  # The episode of each environment; past the last one: none.
    observation = np.zeros([n, *environments.observation_shape], environments.observation_dtype)
    ended = np.ones([n], bool)
    while True:
      observation, number = self._next(environments, ended, observation, number, played)
      playing = number < self._episodes
      if not playing.any():
        return played
      if memory is not None:
        memory[ended] = 0.0
      actions, memory = acted(agent.act, environments.action_size, observation, noise, memory)
      if not np.isfinite(actions[playing]).all():
        raise RunFailed("evaluation: the agent's actions are not finite")
      outcome = environments.step(actions, playing)
      failed = np.isin(np.arange(n), list(outcome.failures))
      for i, why in outcome.failures.items():
        self._drop(played, environments.name, number[i], why)
      if number[0] == 0 and not failed[0]:
        if observation.ndim == 2:  # Images would fill the memory.
          played.observations.append(observation[0].copy())
        played.actions.append(actions[0])
        played.rewards.append(outcome.reward[0])
      good = playing & ~failed
      played.returns[number[good]] += outcome.reward[good]
      played.lengths[number[good]] += 1
      ended = playing & (outcome.terminated | outcome.truncated | failed)
      observation = outcome.observation

  def _next(self, environments: Environments, ended: np.ndarray, observation: np.ndarray,
            number: np.ndarray, played: Episodes) -> tuple[np.ndarray, np.ndarray]:
    """Begins the next episodes where one ended: observations and numbers of episodes [n]."""
    number = number.copy()
    which = np.flatnonzero(ended).tolist()
    while which:
      for i in which:
        number[i] = number.max() + 1
      # Reset even if no episode is left: an environment must not stay at the end of one.
      begun, failures = environments.reset({i: evaluation_seed(int(number[i])) for i in which})
      observation = merged(np.isin(np.arange(len(number)), which), begun, observation)
      for i, why in failures.items():
        self._drop(played, environments.name, number[i], why)
      which = [i for i in failures if number[i] < self._episodes]
    return observation, number

  def _drop(self, played: Episodes, name: str, episode: int, why: str) -> None:
    if episode >= self._episodes:
      return
    played.returns[episode] = np.nan
    self._warn(f"evaluation: {name}, episode {episode}: {why}; the episode does not count")


def _strip_or_curves(settings: "EnvironmentSettings", played: Episodes) -> tuple[np.ndarray, str]:
  """The picture of the first episode, uint8 `[h, w, 3]`, and a description of it."""
  actions, rewards = np.stack(played.actions), np.array(played.rewards)
  steps = np.linspace(0, len(actions), _ROWS * _COLUMNS).round().astype(int).tolist()
  frames, why = rendering.frames(settings, evaluation_seed(0), actions, steps, _HEIGHT)
  if frames:
    returns = np.concatenate([[0.0], np.cumsum(rewards)])
    captions = [f"{step}: {returns[step]:.4g}" for step in steps]
    return (_strip(frames, captions),
            "the picture shows the first episode, with step: return so far")
  return (_curves(played.observations, actions, rewards),
          f"the picture shows curves of the first episode, which cannot be rendered here ({why})")


def _strip(frames: list[np.ndarray], captions: list[str]) -> np.ndarray:
  height, width = frames[0].shape[0] + _CAPTION + _GAP, frames[0].shape[1] + _GAP
  sheet = Image.new("RGB", (_COLUMNS * width - _GAP, _ROWS * height - _GAP), "white")
  draw, font = ImageDraw.Draw(sheet), ImageFont.load_default()
  for i, (frame, caption) in enumerate(zip(frames, captions, strict=True)):
    row, column = divmod(i, _COLUMNS)
    x, y = column * width, row * height
    draw.text((x + 2, y + 1), caption, fill="black", font=font)
    sheet.paste(Image.fromarray(frame), (x, y + _CAPTION))
  return np.asarray(sheet)


def _curves(observations: list[np.ndarray], actions: np.ndarray, rewards: np.ndarray) -> np.ndarray:
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure
  shown = {"actions": actions, "reward": rewards}
  if observations:
    shown = {"observation": np.stack(observations)[:, :_MAX_CURVES], **shown}
  figure = Figure(figsize=(9, 6), dpi=80, layout="constrained")
  canvas = FigureCanvasAgg(figure)
  for axes, (name, values) in zip(figure.subplots(len(shown), sharex=True), shown.items(),
                                  strict=True):
    axes.plot(values, linewidth=1)
    axes.set_ylabel(name)
    axes.margins(x=0)
  axes.set_xlabel(f"step; return {rewards.sum():.4g}")
  canvas.draw()
  return np.asarray(canvas.buffer_rgba())[..., :3].copy()
