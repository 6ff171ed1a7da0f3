"""Environments by name: what an agent sees of them, and the errors that a user sees."""

import os
import signal
import subprocess
import sys
import types

from models.rl.environments import rendering
from models.rl.environments.environments import Environments
from models.rl.environments.wrapper import frame_of
from replicator import UsageError
from replicator.app import config
from replicator.configuration import operative
from tests.programs.refusals import refusal

import gin
import gymnasium
import numpy as np
import pytest

SUITE = "dm_control/cartpole-swingup-v0"


def column(*numbers: float) -> np.ndarray:
  return np.array(numbers, np.float32)[:, np.newaxis]


def test_the_largest_number_says_which_discrete_action_is_taken(monkeypatch):
  environments = Environments("CartPole-v1", 2)
  assert (environments.discrete, environments.action_size) == (True, 2)
  environments.reset({0: 1, 1: 1})
  pushed = environments.step(np.array([[1, 0], [-0.9, -0.8]], np.float32)).observation[:, 1]
  assert pushed[0] < 0 < pushed[1]


@pytest.mark.parametrize("transform, space, words", [
    ("TransformObservation", gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(2)),
     "do not make a vector of fixed length"),
    ("TransformAction", gymnasium.spaces.MultiBinary(3),
     r"its actions are MultiBinary\(3\); choose .* a Box of floats, .* or Discrete, such"),
    ("TransformAction", gymnasium.spaces.Box(-1.0, np.inf, [1]), "have no bounds")])
def test_spaces_that_no_agent_can_use_are_refused(scripted, monkeypatch, transform, space, words):
  scripted()
  original, wrapper = gymnasium.make, getattr(gymnasium.wrappers, transform)
  monkeypatch.setattr(gymnasium, "make", lambda *args, **kwargs: wrapper(
      original(*args, **kwargs), lambda x: x, space))
  with pytest.raises(UsageError, match=words):
    Environments("Scripted-v0")


PONG = {"name": "ale_py:ALE/Pong-v5", "kwargs": {"frameskip": 1},
        "wrappers": {"gymnasium.wrappers:AtariPreprocessing": {}}}


@pytest.mark.parametrize("missing, extra, settings, needed", [
    ("gymnasium", "rl", {"name": "Pendulum-v1"}, "gymnasium"),
    ("dm_control", "rl", {"name": SUITE}, "gymnasium"),
    ("shimmy", "rl", {"name": SUITE}, "dm_control"),
    ("mujoco", "rl", {"name": "HalfCheetah-v5"}, "gymnasium"),
    ("ale_py", "atari", PONG, "gymnasium"), ("cv2", "atari", PONG, "ale_py")])
def test_the_error_of_a_missing_package_says_how_to_install_it(
    monkeypatch, missing, extra, settings, needed):
  pytest.importorskip(needed)
  monkeypatch.setitem(sys.modules, missing, None)
  with pytest.raises(UsageError, match=rf"needs {missing}, .* pip install 'replicator\[{extra}\]'"):
    Environments(**settings)


@pytest.mark.parametrize("vectorization", [
    "sync", pytest.param("async", marks=pytest.mark.slow)])
def test_environments_have_arguments_and_wrappers(vectorization):
  environments = Environments("Pendulum-v1", 2, vectorization, kwargs={"g": 0.0}, wrappers={
      "gymnasium.wrappers:TransformReward": {"func": abs},
      "gymnasium.wrappers:TimeAwareObservation": {}})
  for made in (environments, environments.like(2)):
    assert made.observation_shape == (4,)
    first, _ = made.reset({0: 1, 1: 2})
    outcome = made.step(column(0, 0))
    np.testing.assert_array_equal(outcome.observation[:, 2], first[:, 2])  # Nothing pulls.
    assert (outcome.reward > 0).all() and (outcome.observation[:, 3] == 1).all()
    made.close()


def test_bindings_of_gin_that_other_processes_would_lack_are_refused(monkeypatch):
  @gin.configurable(module="tests")
  class Bound(gymnasium.Wrapper):
    def __init__(self, env, goal=0.0):
      super().__init__(env)

  monkeypatch.setitem(sys.modules, "bound", types.SimpleNamespace(Bound=Bound))
  make = lambda **passed: Environments("CartPole-v1", wrappers={"bound:Bound": passed})
  make()
  written = operative.text()
  assert "Bound.goal = 0.0" in written
  config.parse([], written.splitlines()[2:])  # As `play` does: it binds the defaults.
  make()
  config.parse([], ["GOAL = 3.0", "Bound.goal = %GOAL", "eval/Bound.goal = 4.0"])
  make(goal=1.0)
  assert "gin binds tests.Bound, which is called when an environment is made" in refusal(make)


def test_wrappers_are_around_those_of_the_entry_point(monkeypatch):
  made = lambda: gymnasium.wrappers.RecordEpisodeStatistics(
      gymnasium.make("Pendulum-v1").unwrapped)
  gymnasium.register("Wrapped-v0", made)
  environments = Environments("Wrapped-v0", wrappers={
      "gymnasium.wrappers:TransformReward": {"func": abs}})
  gymnasium.registry.pop("Wrapped-v0")
  environments.reset({0: 1})
  assert environments.step(column(0)).reward[0] > 0


SPACES = gymnasium.spaces


@pytest.mark.parametrize("space, first, inside, outside", [
    (SPACES.Box(0, 9, [2], np.int32), np.array([1, 2]), [3, 4], [0.5, 1]),
    (SPACES.Box(0, 9, [2], np.int32), np.array([1, 2]), [3, 4], [1, np.nan]),
    (SPACES.Box(0, 255, [2], np.uint8), np.array([1, 2]), [3, 4], [300, 1]),
    (SPACES.Dict({"a": SPACES.Discrete(4)}), {"a": 1}, {"a": 3}, {"a": -1}),
    (SPACES.Tuple([SPACES.MultiDiscrete([3, 2])]), (np.array([1, 0]),), (np.array([2, 1]),),
     (np.array([3, 0]),))], ids=str)
def test_numbers_that_a_space_does_not_have_are_failures(space, first, inside, outside):
  class Given(gymnasium.Env):
    observation_space, action_space = space, SPACES.Discrete(2)

    def reset(self, *, seed=None, options=None):
      self.given = iter([inside, outside])
      return first, {}

    def step(self, action):
      return next(self.given), 0.0, False, False, {}

  gymnasium.register("Given-v0", Given)
  environments = Environments("Given-v0")
  gymnasium.registry.pop("Given-v0")
  _, failures = environments.reset({0: 1})
  assert not failures and not environments.step(column(0, 0).T).failures
  assert "is not in its observation_space" in environments.step(column(0, 0).T).failures[0]


def test_a_repeated_action_adds_up_its_rewards_until_the_episode_ends(scripted):
  log = scripted(length=5)
  environments = Environments("Scripted-v0", wrappers={
      "models.rl.environments.action_repeat:ActionRepeat": {"repeat": 2}})
  environments.reset({0: 1})
  rewards, ended = [], []
  for action in (0.0, 0.5, 1.0):
    outcome = environments.step(column(action))
    rewards.append(outcome.reward[0])
    ended.append(bool(outcome.terminated[0]))
  assert (rewards, ended) == ([2.0, 4.0, 3.0], [False, False, True])
  assert log[-5:] == [1.0, 1.0, 2.0, 2.0, 3.0]


@pytest.mark.parametrize("name", ["Pendulum-v1", "dm_control/cartpole-swingup-v0"])
def test_a_repeated_action_takes_more_time_in_the_world(name):
  wrappers = {"models.rl.environments.action_repeat:ActionRepeat": {"repeat": 2}}
  alone, repeated = (Environments(name, wrappers=each) for each in (None, wrappers))
  assert repeated.steps_per_second == alone.steps_per_second / 2


class Leftover(gymnasium.Env):
  """Sees, in an image of bool, whether an action was taken since it was made."""

  observation_space = gymnasium.spaces.Box(0, 1, [2, 3, 1], bool)
  action_space = gymnasium.spaces.Discrete(2)
  acted = False

  def reset(self, *, seed=None, options=None):
    return np.full([2, 3, 1], self.acted), {}

  def step(self, action):
    self.acted = True
    return np.full([2, 3, 1], True), 0.0, False, False, {}


@pytest.mark.parametrize("fresh", [True, False])
def test_a_fresh_episode_sees_nothing_of_the_one_before_in_an_image_of_bytes(fresh, monkeypatch):
  monkeypatch.setitem(sys.modules, "leftovers", types.SimpleNamespace(
      register_envs=lambda: gymnasium.register("Leftover-v0", Leftover)))
  wrappers = {"models.rl.environments.fresh_episodes:FreshEpisodes": {}} if fresh else {}
  environments = Environments("leftovers:Leftover-v0", stack=2, wrappers=wrappers)
  gymnasium.registry.pop("Leftover-v0")
  assert (environments.observation_shape, environments.observation_dtype) == ((2, 3, 2), "uint8")
  first, _ = environments.reset({0: 1})
  later = environments.step(column(0, 0).T).observation
  again, _ = environments.reset({0: 2})
  assert (first == 0).all() and (again == (not fresh)).all()
  np.testing.assert_array_equal(later, np.broadcast_to([0, 1], [1, 2, 3, 2]))


def test_actions_are_scaled_to_the_bounds_and_kept_in_them(scripted):
  log = scripted(bound=3.0)
  environments = Environments("Scripted-v0", 4)
  environments.reset(dict.fromkeys(range(4), 1))
  environments.step(column(-1, 0, 0.5, 1.5))
  assert log[-4:] == [-1.0, 1.0, 2.0, 3.0]


def test_observations_are_one_vector_of_float32_and_belong_to_the_caller(scripted):
  scripted()
  environments = Environments("Scripted-v0", 2)
  assert (environments.observation_shape, environments.observation_dtype) == ((3,), "float32")
  assert (environments.action_size, environments.episode_steps) == (1, 50)
  first, _ = environments.reset({0: 2**30, 1: 2**31})
  later = environments.step(column(0, 1)).observation
  np.testing.assert_array_equal(first, [[0.25, 0, 0], [0.5, 0, 0]])
  np.testing.assert_array_equal(later, [[0.25, 1, 1], [0.5, 1, 3]])
  assert first.dtype == later.dtype == np.float32


@pytest.mark.parametrize("failure, words", [
    ((1e300, 0.0), "its observation is not finite"), ((0.0, 1e300), "its reward is 1e+300"),
    (ValueError("on\nfire"), "ValueError: on fire"), (KeyError(), "KeyError"),
    (OSError("of the environment"), "OSError: of the environment"), (SystemExit(0), "SystemExit"),
])
def test_a_failure_is_reported_for_the_environment_that_failed_only(scripted, failure, words):
  log = scripted(failures={(2, 1): failure})
  environments = Environments("Scripted-v0", 3)
  environments.reset({0: 0, 1: 0, 2: 0})
  made = log.count("made")
  outcome = environments.step(column(0, 0, 0))
  assert list(outcome.failures) == [1] and words in outcome.failures[1]
  _, failures = environments.reset({1: 0})
  assert not failures
  assert log.count("made") == made + isinstance(failure, BaseException)
  np.testing.assert_array_equal(environments.step(column(0, 0, 0)).observation[:, 1], [2, 1, 2])


def test_the_control_suite_is_available_under_its_names():
  pytest.importorskip("dm_control")
  line = refusal(Environments, "dm_control/cartpol-swingup-v0")
  assert line.endswith(f"Did you mean '{SUITE}'?")
  environments = Environments(SUITE, 2)
  assert (environments.observation_shape, environments.action_size) == ((5,), 1)
  assert environments.episode_steps == 1000
  first, _ = environments.reset({0: 5, 1: 6})
  again, _ = environments.reset({0: 6, 1: 5})
  np.testing.assert_array_equal(first, again[::-1])
  assert np.any(first[0] != first[1])


def test_frames_of_numbers_up_to_1_become_bytes():
  env = types.SimpleNamespace(render=lambda: np.full([4, 2, 3], 0.5))
  np.testing.assert_array_equal(frame_of(env, 8), np.full([8, 4, 3], 127, np.uint8))


def test_processes_of_environments_need_no_tensorflow():
  code = "import sys, models.rl.environments.wrapper; sys.exit('tensorflow' in sys.modules)"
  assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0


def test_the_setting_of_opengl_holds_only_inside(monkeypatch):
  for before in ("egl", None):
    monkeypatch.setenv("MUJOCO_GL", before) if before else monkeypatch.delenv("MUJOCO_GL")
    with rendering.opengl("disable"):
      assert os.environ["MUJOCO_GL"] == "disable"
    assert os.environ.get("MUJOCO_GL") == before


@pytest.mark.slow
def test_pixels_come_from_processes_of_their_own():
  pytest.importorskip("pygame")
  environments = Environments("Pendulum-v1", 2, pixels=32)
  first, failures = environments.reset({0: 1, 1: 2})
  assert first.shape == (2, 32, 32, 3) and first.dtype == np.uint8 and not failures
  assert environments.observation_dtype == "uint8"
  assert np.ptp(first) > 100 and np.any(environments.step(column(1, 1)).observation != first)
  environments.close()


@pytest.mark.slow
def test_an_interrupt_of_all_processes_does_not_reach_those_of_environments():
  environments = Environments("Pendulum-v1", 2, "async")
  environments.reset({0: 1, 1: 2})
  for process in environments._vector.processes:
    os.kill(process.pid, signal.SIGINT)
  for _ in range(50):
    assert not environments.step(column(0, 0)).failures
  environments.close()
