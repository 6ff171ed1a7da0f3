"""Discrete actions of one or several choices: what an environment receives."""

from models.rl.environments.environments import Environments

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete


@pytest.fixture
def received():
  """Registers 'Own-v0' with an action space; the actions that it then receives."""
  actions: list = []

  class Own(gymnasium.Env):
    observation_space = Box(0, 1, [1])

    def reset(self, seed=None, options=None):
      return np.zeros(1, np.float32), {}

    def step(self, action):
      assert action in self.action_space
      actions.append(action)
      return np.zeros(1, np.float32), 0.0, False, False, {}

  def register(space):
    gymnasium.register("Own-v0", type("Own", (Own,), {"action_space": space}), max_episode_steps=9)
    return actions

  yield register
  gymnasium.registry.pop("Own-v0", None)


VECTOR = np.array([[0.1, 0.3, -1.0, -0.2, -0.1, 0.9]], np.float32)


@pytest.mark.parametrize("space, choices, taken", [
    (Discrete(6, start=3), (6,), 8), (MultiDiscrete([2, 4]), (2, 4), [1, 3]),
    (MultiDiscrete([[3], [3]], start=[[5], [-1]]), (3, 3), [[6], [1]]),
    (MultiDiscrete([1, 5], dtype=np.int32), (1, 5), [0, 4]),
    (MultiBinary(3), (2, 2, 2), [1, 1, 1]), (MultiBinary([3, 1]), (2, 2, 2), [[1], [1], [1]])])
def test_the_largest_number_of_each_choice_is_taken(received, space, choices, taken):
  actions = received(space)
  environments = Environments("Own-v0")
  assert (environments.choices, environments.action_size) == (choices, 6)
  assert environments.discrete and not environments.masked
  environments.reset({0: 1})
  assert not environments.step(VECTOR).failures
  np.testing.assert_array_equal(actions[0], taken)
