"""PPO on tasks whose best return is known: several choices, and impossible actions."""

import pathlib

from experiments import ppo
from replicator.app import config
from tests.pages import ROOT
from tests.programs import logs

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

COMMON = ["Replicator.jit_compile = False", "train.checkpoint_every = 0",
          "EpisodeEvaluator.picture = False"]


class Dials(gymnasium.Env):
  """Two dials of 3 and 4 positions show what they are to be set to; each rewards the right one."""

  observation_space, action_space = Box(0, 1, [7]), MultiDiscrete([3, 4])

  def reset(self, seed=None, options=None):
    super().reset(seed=seed)
    return self._shown(), {}

  def step(self, action):
    reward = float(np.mean(action == self._right))
    return self._shown(), reward, False, False, {}

  def _shown(self):
    self._right = self.np_random.integers([3, 4])
    return np.concatenate([np.eye(k)[i] for k, i in zip((3, 4), self._right, strict=True)]).astype(
        np.float32)


class Doors(gymnasium.Env):
  """A corridor of 6 rooms with 100 doors, two of which are in each: one back, and one on.

  Every step costs 1.
  """

  observation_space = Dict({"action_mask": Box(0, 1, [100], np.int8), "room": Box(0, 1, [6])})
  action_space = Discrete(100)

  def reset(self, seed=None, options=None):
    self._room = 0
    return self._seen(), {}

  def step(self, action):
    back, on = self._doors()
    self._room = max(0, self._room + int(action == on) - int(action == back))
    return self._seen(), -1.0, self._room == 6, False, {"is_success": self._room == 6}

  def _doors(self):
    return 97 - 15 * self._room, 11 * self._room + 3

  def _seen(self):
    room, mask = np.zeros([6], np.float32), np.zeros([100], np.int8)
    if self._room < 6:
      room[self._room], mask[list(self._doors())] = 1, 1
    return {"action_mask": mask, "room": room}


@pytest.fixture
def registered():
  gymnasium.register("Dials-v0", Dials, max_episode_steps=10)
  gymnasium.register("Doors-v0", Doors, max_episode_steps=60)
  yield
  for name in ("Dials-v0", "Doors-v0"):
    gymnasium.registry.pop(name)


def last_evaluation(main, file: str, workdir: pathlib.Path, *bindings: str) -> dict[str, float]:
  config.parse([str(ROOT / "configs" / file)], [*COMMON, *bindings])
  main(str(workdir))
  return [row for row in logs.rows(workdir) if "eval/return" in row][-1]


PPO = ["train.steps = 600", "train.log_every = 200", "train.eval_every = 600", "linear.end = 600",
       "linear.initial = 3e-3", "Policy.sizes = (32, 32)", "Normalizer.enabled = False"]


@pytest.mark.slow
def test_ppo_sets_two_dials_as_well_as_can_be(registered, tmp_path):
  found = last_evaluation(ppo.ppo, "ppo_cartpole.gin", tmp_path, *PPO,
                          "Environments.name = 'Dials-v0'")
  assert found["eval/return"] == 10 and found["eval/return_sampled"] > 9


@pytest.mark.slow
def test_a_mask_leads_through_a_hundred_doors(registered, tmp_path):
  found = last_evaluation(ppo.ppo, "ppo_cartpole.gin", tmp_path, *PPO,
                          "Environments.name = 'Doors-v0'")
  assert (found["eval/return"], found["eval/is_success"]) == (-6, 1)
