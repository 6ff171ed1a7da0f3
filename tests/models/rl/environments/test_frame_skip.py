"""Frames of the simulator: which repeats of actions are known, and what counts frames."""

import types

from models.rl.acting.action_noise import Exploration
from models.rl.acting.actor import Actor
from models.rl.environments.environments import Environments

import gymnasium
import numpy as np
import pytest

REPEAT = "models.rl.environments.action_repeat:ActionRepeat"
HERE = "tests.models.rl.environments.test_frame_skip"


class Twice(gymnasium.Wrapper):
  """A wrapper of a user's, which says that it repeats each action."""

  frames_per_step = 2

  def step(self, action):
    self.env.step(action)
    return self.env.step(action)


@pytest.mark.parametrize("wrappers, frames", [
    ({}, 1), ({REPEAT: {"repeat": 3}}, 3), ({f"{HERE}:Twice": {}}, 2),
    ({f"{HERE}:Twice": {}, REPEAT: {"repeat": 3}}, 6),
    ({REPEAT: {"repeat": 2}, "gymnasium.wrappers:ClipReward": {"min_reward": -1.0}}, 2),
    ({"gymnasium.wrappers:MaxAndSkipObservation": {"skip": 4}}, 4)])
def test_wrappers_that_repeat_actions_are_known(wrappers, frames):
  assert Environments("Pendulum-v1", wrappers=wrappers).frames_per_step == frames


@pytest.mark.parametrize("kwargs, wrappers, frames", [
    ({}, {}, 4), ({"frameskip": 1}, {}, 1), ({"frameskip": (2, 5)}, {}, 3),
    ({"frameskip": 1}, {"gymnasium.wrappers:AtariPreprocessing": {"grayscale_newaxis": True}}, 4),
    ({"frameskip": 1}, {"gymnasium.wrappers:AtariPreprocessing": {
        "frame_skip": 2, "grayscale_newaxis": True}}, 2)])
def test_the_frame_skip_of_games_is_known(kwargs, wrappers, frames):
  pytest.importorskip("ale_py")
  pytest.importorskip("cv2")
  found = Environments("ale_py:ALE/Pong-v5", kwargs=kwargs, wrappers=wrappers)
  assert found.frames_per_step == frames


def test_the_factor_is_said_once(capsys):
  for _ in range(2):
    Environments("MountainCarContinuous-v0", wrappers={REPEAT: {"repeat": 5}})
  assert capsys.readouterr().err == (
      "note: MountainCarContinuous-v0: each action lasts 5 frames of the simulator, and "
      "environment steps count frames\n")


def test_an_actor_counts_frames(scripted):
  log = scripted(length=40)
  environments = Environments("Scripted-v0", 2, wrappers={REPEAT: {"repeat": 4}})
  log.clear()
  inserted: list = []
  replay = types.SimpleNamespace(insert=inserted.append)
  actor = Actor(environments, replay, exploration=Exploration(random_steps=16))
  actor.collect(lambda observations, noise: np.zeros([2, 1], np.float32), until=24)
  actions = [entry for entry in log if isinstance(entry, float)]
  # Two environments take three actions each, of which the first two are random.
  assert int(actor.environment_steps) == 24 == len(actions)
  assert len(inserted[0].flag) == 6
  is_random = [action != actions[-1] for action in actions]
  assert is_random == [True] * 16 + [False] * 8
