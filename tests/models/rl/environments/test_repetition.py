"""Episodes that are no function of their seed and actions are found at the start."""

import contextlib
import random

from models.rl.environments import repetition
from models.rl.environments.environments import Environments

import gymnasium
import numpy as np
import pytest


class Drawing(gymnasium.Env):
  """Draws in `reset` and in `step` from given generators; an episode has a number of steps."""

  observation_space = gymnasium.spaces.Box(-1, 1, [1], np.float64)
  action_space = gymnasium.spaces.Box(-1, 1, [1], np.float32)

  def __init__(self, first: str, later: str, length: int):
    self._first, self._later, self._length = first, later, length

  def _draw(self, source: str) -> np.ndarray:
    draw = {"own": self.np_random.random, "global": np.random.random, "none": lambda: 0.5}[source]
    return np.array([draw()])

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    self._left = self._length
    return self._draw(self._first), {}

  def step(self, action):
    self._left -= 1
    return self._draw(self._later), float(action[0]), self._left == 0, False, {}


@pytest.mark.parametrize("first, later, length, words", [
    ("own", "own", 9, ""), ("none", "own", 1, ""),
    ("global", "own", 9, "differ at their first observation"),
    ("own", "global", 9, "differ after 1 steps"), ("own", "global", 1, "differ after 1 steps")])
def test_draws_from_the_global_generator_are_found(first, later, length, words, request):
  gymnasium.register("Drawing-v0", Drawing,
                     kwargs={"first": first, "later": later, "length": length})
  request.addfinalizer(lambda: gymnasium.registry.pop("Drawing-v0"))
  line = repetition.doubt(Environments("Drawing-v0", 2))
  assert words in line and bool(line) == bool(words)
  assert not line or line.startswith("warning: Drawing-v0: two episodes")


@pytest.mark.parametrize("settings, found", [
    ({}, False), ({"drifts": True}, True), ({"failures": {0: ValueError()}}, False),
    ({"failures": {2: ValueError()}}, False)])
def test_episodes_that_depend_on_others_are_found_and_failures_are_left(scripted, settings, found):
  scripted(**settings)
  assert bool(repetition.doubt(Environments("Scripted-v0"))) == found


def test_evaluations_leave_the_global_generators_as_they_were():
  for draw in (np.random.random, random.random):
    with contextlib.suppress(ValueError), repetition.generators_kept():
      inside = draw()
      raise ValueError
    assert draw() == inside != draw()
