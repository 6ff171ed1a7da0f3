"""Evaluation by whole greedy episodes: scalars, pictures, failures."""

import threading

from models.rl.acting.evaluation import EpisodeEvaluator
from models.rl.environments import rendering
from models.rl.environments.environments import Environments
from replicator.errors import RunFailed
from tests.programs.refusals import refusal

import numpy as np
import pytest


class Agent:
  """Acts with a function of observations and noise."""

  def __init__(self, act=lambda observations, noise: np.tanh(observations[:, :1])):
    self.act = act


def evaluate(name: str, agent: Agent, warnings: list | None = None, episodes: int = 3, **settings):
  def unexpected(line):
    raise AssertionError(line)
  warn = unexpected if warnings is None else warnings.append
  return EpisodeEvaluator(lambda: Environments(name), episodes, warn=warn, **settings)(agent)


def test_scalars_are_those_of_whole_episodes(scripted):
  log = scripted(length=4)
  actions = iter(np.float32([[0, .5, 1], [0, .5, 1], [0, .5, 1], [0, .5, -1]]))
  act = lambda observations, noise: next(actions)[:, np.newaxis]
  found = evaluate("Scripted-v0", Agent(act), picture=False)
  assert found.scalars == pytest.approx({
      "return": (4 + 8 + 8) / 3, "return_std": np.std([4, 8, 8]), "return_min": 4,
      "return_max": 8, "episode_length": 4})
  assert not found.images
  assert "Scripted-v0: 3 whole episodes of greedy actions" in found.method
  assert len([x for x in log if isinstance(x, float)]) == 3 * 4


def test_actions_are_greedy_and_seeds_are_always_the_same(scripted):
  scripted()
  seen: list = []
  def act(observations, noise):
    assert not noise.any()
    seen.append(observations)
    return np.tanh(observations[:, :1])
  evaluator = EpisodeEvaluator(lambda: Environments("Scripted-v0"), 3, picture=False)
  first, begun = evaluator(Agent(act)), list(seen)
  seen.clear()
  assert evaluator(Agent(act)).scalars == first.scalars
  assert np.array(seen).tobytes() == np.array(begun).tobytes()
  assert len(set(begun[0][:, 0].tolist())) == 3


@pytest.mark.parametrize("act, shape", [
    (lambda observations, noise: observations[:, 0], "[3]"),
    (lambda observations, noise: observations[:, :2], "[3, 2]")])
def test_actions_of_another_shape_are_refused(scripted, act, shape):
  scripted()
  said = refusal(evaluate, "Scripted-v0", Agent(act), picture=False)
  assert said.startswith(f"the agent's act returned actions of shape {shape} for 3 observations; "
                         "return [n, 1], numbers in [-1, 1]")


def test_a_policy_remembers_its_episode_and_no_other(scripted, monkeypatch):
  scripted(length=3)
  original = Environments.like
  monkeypatch.setattr(Environments, "like", lambda self, number: original(self, 2))
  counts: list = []
  def act(observations, noise, memory):
    counts.append(memory[:, 0].tolist())
    return np.tanh(observations[:, :1]), memory + 1
  agent = Agent(act)
  agent.memory_size = 1
  evaluate("Scripted-v0", agent, picture=False)
  assert counts == [[0, 0], [1, 1], [2, 2], [0, 0], [1, 1], [2, 2]]


def test_fewer_environments_than_episodes_give_the_same(scripted, monkeypatch):
  scripted(length=5)
  expected = evaluate("Scripted-v0", Agent(), episodes=5, picture=False)
  original = Environments.like
  monkeypatch.setattr(Environments, "like", lambda self, number: original(self, 2))
  assert evaluate("Scripted-v0", Agent(), episodes=5, picture=False).scalars == expected.scalars


def test_a_failed_episode_does_not_count_and_is_reported(scripted):
  log = scripted(length=4, failures={(2, 3): ValueError("boom")})
  warnings: list[str] = []
  half = Agent(lambda observations, noise: np.full_like(noise, 0.5))
  found = evaluate("Scripted-v0", half, warnings, picture=False)
  assert (found.scalars["return_min"], found.scalars["return_max"]) == (8, 8)
  assert found.scalars["episode_length"] == 4
  assert len([x for x in log if isinstance(x, float)]) == 4 + 3 + 4  # Then it stays where it is.
  [line] = warnings
  assert line.startswith("evaluation: Scripted-v0, episode 1: ValueError: boom")


def test_an_environment_that_never_starts_does_not_hang(scripted):
  scripted(failures={0: ValueError("boom")})
  warnings: list[str] = []
  found = evaluate("Scripted-v0", Agent(), warnings, picture=True)
  assert np.isnan(list(found.scalars.values())).all()
  assert len(warnings) == 3


def test_actions_that_are_not_finite_end_the_run(scripted):
  scripted()
  with pytest.raises(RunFailed, match="not finite"):
    evaluate("Scripted-v0", Agent(lambda observations, noise: noise * np.nan))


def test_an_environment_that_cannot_be_pickled_is_drawn_as_curves(scripted):
  scripted(drifts=threading.Lock())
  assert "cannot be sent to the process that renders: TypeError" in evaluate(
      "Scripted-v0", Agent()).method


def test_an_environment_that_cannot_be_rendered_is_drawn_as_curves(scripted, monkeypatch):
  scripted()
  monkeypatch.setattr(rendering, "frames", lambda *given: ([], "no screen"))
  found = evaluate("Scripted-v0", Agent())
  picture = found.images["samples"]
  assert picture.dtype == np.uint8 and picture.ndim == 3 and np.ptp(picture) > 100
  assert "cannot be rendered here (no screen)" in found.method


def test_the_picture_shows_frames_of_the_first_episode():
  pytest.importorskip("pygame")
  found = evaluate("Pendulum-v1", Agent(lambda observations, noise: np.ones_like(noise)))
  picture = found.images["samples"]
  assert picture.shape[2] == 3 and picture.dtype == np.uint8
  frames = np.array_split(picture[20:130], 8, axis=1)
  assert all(np.ptp(frame) > 100 for frame in frames)
  assert "step: return so far" in found.method


@pytest.mark.slow
def test_no_value_of_mujoco_gl_ends_the_run(monkeypatch):
  pytest.importorskip("dm_control")
  rendering.working_opengl.cache_clear()
  monkeypatch.setenv("MUJOCO_GL", "nonsense")
  found = evaluate("dm_control/cartpole-swingup-v0", Agent(), episodes=1)
  rendering.working_opengl.cache_clear()
  assert "cannot be rendered here" in found.method and "samples" in found.images
