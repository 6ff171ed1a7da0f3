"""Masks of impossible actions: where they come from, and where an agent sees them."""

from models.rl.environments.environments import Environments
from tests.programs.refusals import refusal

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

MASKS = np.array([[1, 0, 1], [0, 1, 1], [0, 0, 0]], np.int8)


class Masked(gymnasium.Env):
  """At step i, `MASKS[i]` says which of the actions are possible."""

  def __init__(self, place: str = "info", actions=None, size=None, render_mode=None):
    self.action_space, self._place = actions or Discrete(3, start=1), place
    self._size = size
    seen = Box(0, 9, [2])
    mask = Box(0, 1, [3], np.int8)
    self.observation_space = Dict(
        {"action_mask": mask, "observation": seen}) if place == "observation" else seen

  def reset(self, seed=None, options=None):
    self._step = 0
    return self._seen()

  def step(self, action):
    self._step += 1
    observation, info = self._seen()
    return observation, float(np.sum(action)), self._step == 2, False, info

  def _seen(self):
    seen, mask = np.full([2], self._step, np.float32), MASKS[self._step][:self._size]
    if isinstance(self.action_space, MultiDiscrete):
      mask = (mask[:1], mask[1:])
    if self._place == "observation":
      return {"action_mask": mask, "observation": seen}, {}
    return seen, {"action_mask": mask} if self._place == "info" else {}


@pytest.fixture
def masked():
  """Makes environments of `Masked`."""
  def make(number: int = 1, action_mask: bool = True, **settings) -> Environments:
    gymnasium.register("Masked-v0", lambda: Masked(**settings), max_episode_steps=9)
    return Environments("Masked-v0", number, action_mask=action_mask)
  yield make
  gymnasium.registry.pop("Masked-v0", None)


@pytest.mark.parametrize("place, action_mask", [("info", True), ("observation", False)])
def test_an_agent_observes_the_mask_last(masked, place, action_mask):
  environments = masked(2, action_mask, place=place)
  assert environments.masked and environments.observation_shape == (5,)
  first, _ = environments.reset({0: 1, 1: 2})
  np.testing.assert_array_equal(first, [[0, 0, 1, 0, 1]] * 2)
  outcome = environments.step(np.array([[1, 0, 0], [0, 0, 1]], np.float32))
  np.testing.assert_array_equal(outcome.observation, [[1, 1, 0, 1, 1]] * 2)
  assert outcome.reward.tolist() == [1, 3] and not outcome.failures
  outcome = environments.step(np.array([[0, 1, 0], [1, 0, 0]], np.float32))
  assert "the agent took action 1, which its action_mask rules out" in outcome.failures[1]
  assert list(outcome.failures) == [1] and outcome.terminated[0]
  copied = environments.like(3)
  assert copied.masked and copied.observation_shape == (5,)


def test_choices_have_a_mask_each(masked):
  environments = masked(actions=MultiDiscrete([1, 2]))
  first, _ = environments.reset({0: 1})
  np.testing.assert_array_equal(first, [[0, 0, 1, 0, 1]])
  assert not environments.step(np.array([[0, 0, 1]], np.float32)).failures
  assert environments.step(np.array([[1, 1, 0]], np.float32)).failures


def test_random_actions_are_possible_ones(masked):
  environments = masked(2)
  observations = np.concatenate([np.zeros([2, 2]), MASKS[:2]], 1)
  actions = np.array([[-0.9, 0.9, -0.8], [1, 0, -1]], np.float32)
  assert environments.possible(actions, observations).argmax(1).tolist() == [2, 1]


@pytest.mark.parametrize("settings, words", [
    ({"place": "nowhere"}, "there is no info['action_mask']"),
    ({"size": 2}, "its action_mask has 2 numbers, but its actions have 3 options"),
    ({"actions": Box(-1, 1, [3])}, "the actions of Masked-v0 are Box(-1.0, 1.0, (3,), float32); ")])
def test_masks_that_do_not_fit_are_refused(masked, settings, words):
  said = refusal(masked, **settings)
  assert said.startswith("Environments.action_mask: ") and words in said


def test_images_have_no_place_for_a_mask(masked, monkeypatch):
  gymnasium.register("Masked-v0", lambda: gymnasium.wrappers.TransformObservation(
      Masked(), lambda x: x, Box(0, 255, [4, 4, 3], np.uint8)))
  assert "observes images" in refusal(Environments, "Masked-v0", action_mask=True)
  gymnasium.registry.pop("Masked-v0")
  monkeypatch.setattr(Masked, "metadata", {"render_modes": ["rgb_array"]})
  gymnasium.register("Masked-v0", Masked)
  assert "an image has no place" in refusal(
      Environments, "Masked-v0", pixels=8, action_mask=True)
