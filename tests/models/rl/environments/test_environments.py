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
from tests.models.rl import conftest
from tests.programs.refusals import refusal

import gin
import gymnasium
import numpy as np
import pytest

SUITE = "dm_control/cartpole-swingup-v0"
LARGEST = float(np.finfo(np.float32).max)


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
    ("TransformAction", gymnasium.spaces.Box(0, 3, [2], np.int32),
     r"its actions are Box\(0, 3, .*; choose .* a Box of floats, .* or Discrete, such"),
    ("TransformAction", gymnasium.spaces.Box(-1.0, np.inf, [1]), "have no bounds"),
    *(("TransformAction", gymnasium.spaces.Box(-LARGEST, LARGEST, [1], dtype), "have no bounds")
      for dtype in (np.float32, np.float64))])
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


@pytest.mark.parametrize("wrapper, remedy", [
    ("NormalizeObservation", "Normalizer normalizes observations"),
    ("NormalizeReward", "make_actor.normalize_rewards = True does that")])
def test_wrappers_with_statistics_are_refused_wherever_they_are(wrapper, remedy):
  line = refusal(Environments, "Pendulum-v1", wrappers={
      f"gymnasium.wrappers:{wrapper}": {}, "gymnasium.wrappers:ClipReward": {"max_reward": 1.0}})
  assert f"its wrapper {wrapper} keeps statistics, " in line and remedy in line


def test_a_discrete_action_has_the_dtype_of_its_space(scripted):
  class Small(gymnasium.Wrapper):
    def __init__(self, env):
      super().__init__(env)
      self.action_space = gymnasium.spaces.Discrete(3, start=5, dtype=np.int8)

    def step(self, action):
      assert self.action_space.contains(action) and action.dtype == np.int8
      return self.env.step(np.float32([action]))

  log = scripted()
  original = gymnasium.make
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(gymnasium, "make", lambda *args, **kwargs: Small(original(*args, **kwargs)))
    environments = Environments("Scripted-v0")
    environments.reset({0: 1})
    assert not environments.step(np.float32([[0, 1, 0]])).failures
  assert log[-1] == 6.0


def test_an_unknown_argument_of_an_environment_that_gin_knows_is_named():
  @gin.configurable(module="tests")
  class Known(gymnasium.Env):
    def __init__(self, goal=0.0):
      super().__init__()

  gymnasium.register("Known-v0", Known)
  line = refusal(Environments, "Known-v0", kwargs={"gaol": 1.0})
  gymnasium.registry.pop("Known-v0")
  assert line.startswith("Environments.name = 'Known-v0' cannot be made: TypeError: ")
  assert line.endswith("Known.__init__() got an unexpected keyword argument 'gaol'")


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


def test_a_repeated_action_ends_where_an_episode_is_cut(scripted):
  log = scripted(length=9)
  environments = Environments("Scripted-v0", max_episode_steps=3, wrappers={
      "models.rl.environments.action_repeat:ActionRepeat": {"repeat": 2}})
  environments.reset({0: 1})
  outcomes = [environments.step(column(action)) for action in (0.0, 0.5)]
  assert [outcome.reward[0] for outcome in outcomes] == [2.0, 2.0]
  assert [bool(outcome.truncated[0]) for outcome in outcomes] == [False, True]
  assert not any(outcome.terminated[0] for outcome in outcomes)
  assert log[-3:] == [1.0, 1.0, 2.0]


@pytest.mark.parametrize("name", ["Pendulum-v1", SUITE])
def test_a_repeated_action_takes_more_time_in_the_world(name):
  if name == SUITE:
    pytest.importorskip("dm_control")
  wrappers = {"models.rl.environments.action_repeat:ActionRepeat": {"repeat": 2}}
  alone, repeated = (Environments(name, wrappers=each) for each in (None, wrappers))
  assert repeated.steps_per_second == alone.steps_per_second / 2


class Hidden(gymnasium.Wrapper):
  """Says nothing of the end of an episode, and begins the next one if it is `restless`."""

  def __init__(self, env, restless=False):
    super().__init__(env)
    self._restless = restless

  def step(self, action):
    observation, reward, terminated, truncated, info = self.env.step(action)
    if self._restless and (terminated or truncated):
      observation, _ = self.env.reset()
    return observation, reward, False, False, info


@pytest.fixture
def hidden(monkeypatch):
  """The name of a wrapper that hides the ends of episodes."""
  monkeypatch.setitem(sys.modules, "hiding", types.SimpleNamespace(Hidden=Hidden))
  return "hiding:Hidden"


@pytest.mark.parametrize("restless", [False, True])
def test_an_episode_whose_end_is_hidden_is_cut_at_the_limit_with_one_line(
    restless, scripted, hidden):
  scripted(length=2)
  environments = Environments("Scripted-v0", 2, max_episode_steps=5,
                              wrappers={hidden: {"restless": restless}})
  environments.reset({0: 1, 1: 2})
  for _ in range(2):  # Environment 1 takes two steps less.
    environments.step(column(0, 0), np.array([True, False]))
  outcomes = [environments.step(column(0, 0)) for _ in range(3)]
  assert [each.truncated.tolist() for each in outcomes] == [[False] * 2] * 2 + [[True, False]]
  warnings = [line for outcome in outcomes for line in outcome.warnings]
  assert warnings == ["Scripted-v0: hiding:Hidden hides the ends of episodes: after 5 steps one "
                      "was neither terminated nor truncated; all are cut off there"]
  environments.reset({0: 3})
  later = [environments.step(column(0, 0)) for _ in range(2)]
  assert [outcome.truncated.tolist() for outcome in later] == [[False, False], [False, True]]
  assert not any(outcome.warnings for outcome in later)


def test_other_environments_of_a_kind_are_made_without_a_look_at_one(scripted):
  log = scripted()
  environments = Environments("Scripted-v0")
  other = environments.like(3)
  assert log.count("made") == 1
  other.reset(dict.fromkeys(range(3), 1))
  assert (other.number, environments.number, log.count("made")) == (3, 1, 4)


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
  assert (environments.action_size, environments.max_episode_steps) == (1, 50)
  first, _ = environments.reset({0: 2**30, 1: 2**31})
  later = environments.step(column(0, 1)).observation
  np.testing.assert_array_equal(first, [[0.25, 0, 0], [0.5, 0, 0]])
  np.testing.assert_array_equal(later, [[0.25, 1, 1], [0.5, 1, 3]])
  assert first.dtype == later.dtype == np.float32


def test_observations_in_float64_keep_their_digits(scripted):
  scripted()
  environments = Environments("Scripted-v0", stack=2, observation_dtype="float64")
  assert (environments.observation_shape, environments.observation_dtype) == ((6,), "float64")
  for made in (environments, environments.like(1)):
    first, _ = made.reset({0: 2 ** 24 + 1})
    np.testing.assert_array_equal(first, [[(2 ** 24 + 1) / 2 ** 32, 0, 0] * 2])


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
  assert environments.max_episode_steps == 1000
  first, _ = environments.reset({0: 5, 1: 6})
  again, _ = environments.reset({0: 6, 1: 5})
  np.testing.assert_array_equal(first, again[::-1])
  assert np.any(first[0] != first[1])


@pytest.mark.parametrize("bright, expected", [
    (0.4, 102), (np.float32(102.0), 102), (np.int64(102), 102), (True, 255), (300.0, 255)])
def test_frames_of_other_numbers_become_bytes(bright, expected):
  frame = np.full([4, 2, 3], bright)
  frame[0] = 0
  found = frame_of(types.SimpleNamespace(render=lambda: frame), 8)
  assert found.dtype == np.uint8
  np.testing.assert_array_equal(found[2:], np.full([6, 4, 3], expected))
  assert not found[:2].any()


@pytest.mark.parametrize("given, expected", [
    (np.full([4, 2], 7, np.uint8), [7, 7, 7]), (np.full([4, 2, 1], 7, np.uint8), [7, 7, 7]),
    (np.broadcast_to(np.uint8([1, 2, 3, 99]), [4, 2, 4]), [1, 2, 3])], ids=["gray", "1", "RGBA"])
def test_frames_of_other_channels_become_colors(given, expected):
  frame = frame_of(types.SimpleNamespace(render=lambda: given), 4)
  np.testing.assert_array_equal(frame, np.broadcast_to(np.uint8(expected), [4, 2, 3]))


@pytest.mark.parametrize("given, words", [
    (None, "nothing"), ("a  b", "a str"), ([np.zeros([2, 2, 3])], "a list"),
    (np.zeros([2, 2, 5]), r"an array \[2, 2, 5\]"),
    (np.zeros([0, 2, 3]), r"an array \[0, 2, 3\]")])
def test_what_is_no_frame_is_refused(given, words):
  with pytest.raises(ValueError, match=rf"its render\(\) returned {words}; .* image \[h, w, 3\]"):
    frame_of(types.SimpleNamespace(render=lambda: given), 4)


@pytest.mark.parametrize("first, later, expected", [
    ([10, 20, 3], [10, 30, 3], [40, 80]), ([10, 20, 4], [15, 20, 4], [40, 80]),
    ([2, 200, 3], [2, 200, 3], [2, 240]), ([200, 2, 3], [200, 2, 3], [40, 2])])
def test_all_frames_of_a_film_have_one_size(scripted, monkeypatch, first, later, expected):
  scripted()
  shapes = iter([first, first, later, later])
  monkeypatch.setattr(conftest.Scripted, "render", lambda env: np.zeros(next(shapes), np.uint8))
  settings = Environments("Scripted-v0").settings
  frames = rendering.rendered(settings, 1, np.zeros([5, 1], np.float32), [0, 2, 5], 40)
  assert [list(frame.shape) for frame in frames] == [[*expected, 3]] * 3


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
