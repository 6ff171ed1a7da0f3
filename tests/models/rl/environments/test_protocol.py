"""Environments that were written for Gym, before Gymnasium: one line for each."""

from models.rl.environments.environments import Environments
from tests.programs.refusals import refusal

import gymnasium
import numpy as np
import pytest

BOX = gymnasium.spaces.Box
ZEROS = np.zeros(3, np.float32)
WRITE = "; write `def reset(self, *, seed=None, options=None)`, which calls "


class Given(gymnasium.Env):
  """Returns the `first` of a reset, and the `outcome` of a step."""

  action_space = BOX(-1, 1, [1])
  first, outcome = (ZEROS, {}), (ZEROS, 0.0, False, False, {})

  def reset(self, *, seed=None, options=None):
    return self.first

  def step(self, action):
    return self.outcome


class Unseeded(Given):
  """Takes no seed."""

  def reset(self):
    return self.first


class WithoutOptions(Given):
  """Takes a seed alone."""

  def reset(self, seed=None):
    return self.first


@pytest.fixture
def act():
  """A function that resets an environment of a class and takes a step."""
  def act(kind: type, space: gymnasium.Space, **values) -> None:
    gymnasium.register("Old-v0", lambda: made, max_episode_steps=9)
    made = kind()
    made.observation_space = space
    vars(made).update(values)
    environments = Environments("Old-v0")
    environments.reset({0: 1})
    environments.step(np.zeros([1, 1], np.float32))

  yield act
  gymnasium.registry.pop("Old-v0", None)


DICT = gymnasium.spaces.Dict({"a": BOX(-1, 1, [1]), "b": BOX(-1, 1, [1])})
PAIR = {name: np.zeros(1, np.float32) for name in "ab"}
TUPLE = gymnasium.spaces.Tuple([BOX(-1, 1, [2]), BOX(-1, 1, [2])])


@pytest.mark.parametrize("kind, space, values, line", [
    (Given, BOX(-1, 1, [3]), {"first": ZEROS}, "its reset returned one value, of the type ndarray"),
    (Given, BOX(-1, 1, [2]), {"first": ZEROS[:2]},
     "its reset returned one value, of the type ndarray"),
    (Given, DICT, {"first": PAIR}, "its reset returned one value, of the type dict"),
    (Given, TUPLE, {"first": (ZEROS[:2], ZEROS[:2])},
     "its reset returned 2 values, ndarray, ndarray"),
    (Unseeded, BOX(-1, 1, [3]), {}, "its reset takes no seed"),
    (WithoutOptions, BOX(-1, 1, [3]), {}, "its reset takes no options")])
def test_an_old_reset_is_named_and_what_it_must_be(kind, space, values, line, act):
  said = refusal(act, kind, space, **values)
  assert said.startswith(f"Environments.name = 'Old-v0': {line}, as in Gym before Gymnasium{WRITE}")


def test_an_old_step_is_named_and_what_it_must_return(act):
  said = refusal(act, Given, BOX(-1, 1, [3]), outcome=(ZEROS, 0.0, False, {}))
  assert said == ("Environments.name = 'Old-v0': its step does not return five values, as in Gym "
                  "before Gymnasium; return `observation, reward, terminated, truncated, info`")


def test_a_pair_as_an_observation_is_no_fault(act):
  act(Given, TUPLE, first=((ZEROS[:2], ZEROS[:2]), {}),
      outcome=((ZEROS[:2], ZEROS[:2]), 0.0, False, False, {}))
