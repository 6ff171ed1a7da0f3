"""Evaluation by whole episodes: scalars, sampled actions, pictures, failures."""

import threading
from types import SimpleNamespace

from models.rl.acting.action_noise import Exploration
from models.rl.acting.actor import Actor
from models.rl.acting.evaluation import EpisodeEvaluator
from models.rl.environments import rendering, wrapper
from models.rl.environments.environments import Environments
from models.rl.networks import distributions
from replicator.errors import RunFailed
from tests.programs.refusals import refusal

import gymnasium
import numpy as np
import pytest
import tensorflow as tf


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
  assert "Scripted-v0: 3 whole episodes with greedy actions" in found.method
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


def test_noise_of_sampled_actions_belongs_to_the_episode(scripted, monkeypatch):
  scripted(length=40, bound=1.0)
  noises: list = []
  def act(observations, noise):
    noises.append(noise.copy())
    return np.tanh(noise)
  run = lambda: evaluate("Scripted-v0", Agent(act), picture=False, sampled=True).scalars
  found, of_three = run(), np.array(noises)[40:, :, 0]  # After the greedy ones.
  assert (found["return"], found["episode_length_sampled"]) == (0, 40)
  assert abs(of_three.mean()) < 0.3 and of_three.std() == pytest.approx(1, abs=0.15)
  assert len(set(of_three.ravel())) == 120
  assert found["return_sampled"] == pytest.approx(np.tanh(of_three).sum() / 3, rel=1e-5)
  original = Environments.like
  monkeypatch.setattr(Environments, "like", lambda self, number, *of: original(self, 1, *of))
  noises.clear()
  assert run() == pytest.approx(found, rel=1e-5)
  np.testing.assert_array_equal(np.concatenate(noises[120:])[:, 0], of_three.T.ravel())


class Alias(gymnasium.Env):
  """Sutton and Barto, example 13.1: in the second of four like cells, the directions are swapped.

  A policy that goes right with probability p takes 2 (2 - p) / (p (1 - p)) steps on average.
  """

  observation_space, action_space = gymnasium.spaces.Box(0, 1, [1]), gymnasium.spaces.Discrete(2)

  def reset(self, seed=None, options=None):
    self.cell = 0
    return np.ones(1, np.float32), {}

  def step(self, action):
    self.cell = max(0, self.cell + (1 if (action == 1) != (self.cell == 1) else -1))
    return np.ones(1, np.float32), -1.0, self.cell == 3, False, {}


def test_sampled_actions_show_what_a_random_policy_is_worth():
  p = 2 - np.sqrt(2)  # The best one.
  logits = np.log([[1 - p, p]])
  act = lambda observations, noise: distributions.draw(tf.repeat(logits, len(noise), 0), noise)
  gymnasium.register("Alias-v0", Alias, max_episode_steps=200)
  found = evaluate("Alias-v0", Agent(act), episodes=300, picture=False, sampled=True).scalars
  gymnasium.registry.pop("Alias-v0")
  assert found["return"] == -200
  expected = -2 * (2 - p) / (p * (1 - p))
  error = found["return_sampled_std"] / np.sqrt(300)
  assert found["return_sampled"] == pytest.approx(expected, abs=4 * error) and error < 0.8


def test_numbers_of_the_info_are_reported(scripted):
  info = {1: {"speed": 2.0, "is_success": True, "cost": np.float32(3)}, 2: {"speed": -1},
          3: {"speed": 5.0, "is_success": False, "cost": [7]}, 4: {"is_success": np.True_}}
  scripted(length=4, info=info)
  run = lambda **of: evaluate("Scripted-v0", Agent(), picture=False, **of).scalars
  assert run()["is_success"] == 1.0
  found = run(info={"speed": "mean", "cost": "sum"})
  assert (found["speed"], found["cost"]) == (2.0, 10.0) and "is_success" not in found
  found = run(info={"speed": "max", "is_success": "last", "cost": "last"}, sampled=True)
  for suffix in ("", "_sampled"):
    assert [found[name + suffix] for name in ("speed", "is_success", "cost")] == [5, 1, 7]
  assert refusal(run, info={"sped": "mean"}).startswith(
      "EpisodeEvaluator.info: no step of Scripted-v0 has info['sped']; ")
  assert refusal(run, info={"speed": "average"}).startswith(
      "EpisodeEvaluator.info = {'speed': 'average'}: write one of 'last', 'max', 'mean', 'sum'")


def test_an_environment_without_successes_reports_none(scripted):
  scripted(length=4)
  assert "is_success" not in evaluate("Scripted-v0", Agent(), picture=False).scalars


@pytest.mark.parametrize("act, shape", [
    (lambda observations, noise: observations[:, 0], "[3]"),
    (lambda observations, noise: observations[:, :2], "[3, 2]")])
def test_actions_of_another_shape_are_refused(scripted, act, shape):
  scripted()
  said = refusal(evaluate, "Scripted-v0", Agent(act), picture=False)
  assert said.startswith(f"the agent's act returned actions of shape {shape} for 3 observations; "
                         "return [n, 1], numbers in [-1, 1]")


def test_evaluations_have_wrappers_and_arguments_of_their_own(scripted):
  scripted(length=4)
  repeated = {"models.rl.environments.action_repeat:ActionRepeat": {"repeat": 2}}
  doubled = {"gymnasium.wrappers:TransformReward": {"func": double}}
  training = lambda: Environments("Scripted-v0", wrappers=doubled | repeated)
  half = Agent(lambda observations, noise: np.full_like(noise, 0.5))  # A reward of 2.
  found = {}
  for name, wrappers in (("same", None), ("none", {}), ("repeated", repeated)):
    found[name] = EpisodeEvaluator(training, 2, picture=False, wrappers=wrappers)(half)
  values = {name: (each.scalars["return"], each.scalars["episode_length"])
            for name, each in found.items()}
  assert values == {"same": (16, 2), "none": (8, 4), "repeated": (8, 2)}
  assert found["same"].method.startswith(
      "Scripted-v0 in TransformReward(func=double), ActionRepeat(repeat=2): 2 whole episodes")
  assert found["none"].method.startswith("Scripted-v0: 2 whole episodes")
  pendulum = lambda given, **own: EpisodeEvaluator(
      lambda: Environments("Pendulum-v1", kwargs=given), 1, picture=False, **own)(Agent()).scalars
  weightless = pendulum({"g": 0.0})
  assert pendulum({}, kwargs={"g": 0.0}) == weightless != pendulum({})


def double(reward):
  return 2 * reward


def test_evaluations_show_the_agent_what_it_sees_in_the_training():
  timed = {"gymnasium.wrappers:TimeAwareObservation": {}}
  evaluator = EpisodeEvaluator(lambda: Environments("Pendulum-v1"), 1, wrappers=timed)
  line = refusal(evaluator.play, Agent())
  assert "of float32 [4] and actions of length 1, but training has float32 [3]" in line


def test_a_policy_remembers_its_episode_and_no_other(scripted, monkeypatch):
  scripted(length=3)
  original = Environments.like
  monkeypatch.setattr(Environments, "like", lambda self, number, *of: original(self, 2, *of))
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
  monkeypatch.setattr(Environments, "like", lambda self, number, *of: original(self, 2, *of))
  assert evaluate("Scripted-v0", Agent(), episodes=5, picture=False).scalars == expected.scalars


@pytest.mark.parametrize("number", [1, 2])
def test_a_number_of_environments_plays_all_episodes(scripted, number):
  log = scripted(length=5)
  expected = evaluate("Scripted-v0", Agent(), episodes=5, picture=False)
  made = log.count("made")
  found = evaluate("Scripted-v0", Agent(), episodes=5, picture=False, environments=number)
  assert found.scalars == expected.scalars
  assert log.count("made") - made == number + 1  # One to look at.


def are_open(log: list) -> int:
  return log.count("made") - log.count("closed")


@pytest.mark.parametrize("lifetime, meanwhile, after", [
    ("run", 5, 5), ("evaluation", 5, 2), ("alone", 3, 0)])
def test_environments_are_open_as_long_as_it_says(scripted, lifetime, meanwhile, after):
  log, counts = scripted(length=4), []
  environments = Environments("Scripted-v0", 2)

  def act(observations, noise):
    counts.append(are_open(log))
    return np.tanh(observations[:, :1])

  agent = Agent(act)
  agent.actor = Actor(environments, SimpleNamespace(insert=lambda timesteps: None),
                      exploration=Exploration(0))
  agent.actor.collect(agent.act, 6)
  counts.clear()
  evaluator = EpisodeEvaluator(lambda: Environments("Scripted-v0"), 3, picture=False,
                               lifetime=lifetime)
  first = evaluator(agent)
  assert (max(counts), are_open(log)) == (meanwhile, after)
  agent.actor.collect(agent.act, 20)
  assert evaluator(agent).scalars == first.scalars


def test_a_simulator_that_exists_once_is_evaluated_alone(scripted, monkeypatch):
  log = scripted(length=4)
  original = wrapper._make

  def make(settings):
    if are_open(log):
      raise OSError("[Errno 98] Address already in use")
    return original(settings)

  monkeypatch.setattr(wrapper, "_make", make)
  agent = Agent()
  agent.actor = Actor(Environments("Scripted-v0"), SimpleNamespace(insert=lambda timesteps: None),
                      exploration=Exploration(0))
  agent.actor.collect(agent.act, 6)
  settings = {"episodes": 3, "picture": False, "environments": 1}
  line = refusal(EpisodeEvaluator(lambda: Environments("Scripted-v0"), **settings), agent)
  assert "Address already in use" in line and "EpisodeEvaluator.lifetime = 'alone'" in line
  evaluator = EpisodeEvaluator(lambda: Environments("Scripted-v0"), lifetime="alone", **settings)
  assert evaluator(agent).scalars["episode_length"] == 4


def test_an_episode_whose_end_is_hidden_ends_with_a_line(scripted, monkeypatch):
  scripted()
  monkeypatch.setattr(gymnasium.wrappers.TimeLimit, "step", lambda self, action: (
      *self.env.step(action)[:2], False, False, {}))
  warnings: list[str] = []
  found = EpisodeEvaluator(lambda: Environments("Scripted-v0", max_episode_steps=9), 3,
                           picture=False, warn=warnings.append)(Agent())
  assert found.scalars["episode_length"] == 9
  assert len(warnings) == 1 and warnings[0].startswith("evaluation: Scripted-v0: it hides the ends")


def test_a_failed_episode_does_not_count_and_is_reported(scripted):
  log = scripted(length=4, failures={(2, 3): ValueError("boom")})
  warnings: list[str] = []
  half = Agent(lambda observations, noise: np.full_like(noise, 0.5))
  found = evaluate("Scripted-v0", half, warnings, picture=False)
  assert (found.scalars["return_min"], found.scalars["return_max"]) == (8, 8)
  assert found.scalars["episode_length"] == 4
  assert "Scripted-v0: 2 of 3 episodes (the rest failed) with greedy" in found.method
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
