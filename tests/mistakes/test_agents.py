"""The mistakes of a newcomer with an agent and its environments: the line of each.

Every row runs as on the command line, in one process.
"""

import shutil
import sys

from experiments.d4pg import d4pg
from experiments.dqn import dqn
from experiments.ppo import ppo
from experiments.sac import sac
from experiments.td3 import td3
from experiments.world_model import world_model
from tests.mistakes.conftest import FAILED, USAGE, assert_line
from tests.programs.capabilities import eagerly

import gymnasium
import pytest

MODULE = '''import gymnasium
import numpy as np
from gymnasium.spaces import *


class Mine(gymnasium.Env):

  observation_space = Box(-1, 1, [2])
  action_space = Box(-1, 1, [1])

  def reset(self, seed=None, options=None):
    return np.zeros(2), {}

  def step(self, action):
    return np.zeros(2), 0.0, False, False, {}


gymnasium.register("Mine-v0", Mine, max_episode_steps=20)
'''
REPLAYED = ["RateLimiter.learning_starts = 30", "Exploration.random_steps = 10",
            "Replay.capacity = 100", "Policy.sizes = (4, 4)", "Critic.sizes = (4, 4)"]
SMALL = {dqn: [*REPLAYED[:3], "ActionValues.sizes = (4, 4)"],
         ppo: ["Policy.sizes = (4, 4)", "Rollouts.length = 16"],
         world_model: [*REPLAYED[:2], "SequenceReplay.length = 4", "Dreamer.horizon = 2"]}
CONFIG = {sac: "sac_pendulum", td3: "td3_pendulum", d4pg: "d4pg_pendulum", dqn: "dqn_cartpole",
          ppo: "ppo_cartpole", world_model: "world_model_pendulum"}
COMMON = ["train.steps = 2", "train.steps_per_call = 1", "train.log_every = 1",
          "train.eval_every = 0", "train.checkpoint_every = 0", "train.global_batch_size = 4",
          "Replicator.jit_compile = False"]

SETTINGS = [  # The program, a binding, and the rest of the line, or all of it.
    *((program, "Environments.name = 'CartPole-v1'",
       ": its actions are Discrete(2), but this agent's are continuous; ... a Box...")
      for program in (sac, td3, d4pg, world_model)),
    (dqn, "Environments.name = 'Pendulum-v1'", ": its actions are a Box, ... Discrete, such ..."),
    (sac, "RateLimiter.update_ratio = 0", ": must be above 0"),
    (sac, "RateLimiter.learning_starts = 0", ": must be above 0"),
    (sac, "RateLimiter.update_ratio = 1e-09", ": must be at least 1e-06"),
    (d4pg, "Replay.n_step = 40",
     "RateLimiter.learning_starts = ...: after that many steps, over all Environments.num...; "
     "increase it"),
    (sac, "Exploration.noise = @PinkNoise", "...Write @PinkNoise()"),
    (sac, "SAC.initial_temperature = 0", ": must be above 0"),
    (sac, "Policy.sizes = ()", ": must have at least one size"),
    (sac, "SAC.policy = @Policy()",
     "...: the program calls it, and passes ...; write @Policy, without parentheses"),
    (sac, "Environments.step_timeout = 0", ": must be above 0"),
    (sac, "Normalizer.limit = 0", ": must be above 0"),
    (sac, "SAC.tau = 0", ": must be above 0"),
    (td3, "TD3.tau = 1.5", ": must be from 0 to 1"),
    (d4pg, "D4PG.target_update_period = 0", ": must be at least 1"),
    (td3, "TD3.policy_delay = 0", ": must be at least 1"),
    (sac, "wrap_optimizer.ema_decay = 0.99", ": an agent has its own ...; set SAC.tau instead"),
    (dqn, "wrap_optimizer.ema_every = 9",
     ": an agent has its own ...; set DQN.target_update_period instead"),
    (td3, "policy/wrap_optimizer.every = 3",
     "wrap_optimizer.every = 3: ... and delays; set TD3.policy_delay instead"),
    (dqn, "DQN.epsilon = 1.5", ": must be from 0 to 1"),
    (dqn, "Exploration.scale = 0.5", ": ..., so its noise must have scale 1"),
    (ppo, "Exploration.scale = 0.5", ": ..., so its noise must have scale 1"),
    (ppo, "Exploration.random_steps = 500", "...random_steps is never used: the program ..."),
    (sac, "Exploration.alpha = 7.0", ": is an exponent of ...; set a scale such as 0.4"),
    (sac, "Replay.reward_limit = 0", ": must be above 0"),
    (sac, "Replay.augment = @RandomShift", "...Write @RandomShift()"),
    (sac, "Replay.augment = @RandomShift()",
     "...: RandomShift: observations of shape (3,) are not images; set Environments.pixels, ..."),
    (d4pg, "D4PG.action_gradient_norm = 0", ": must be above 0"),
    (td3, "TD3.target_noise_clip = -0.5", ": must be at least 0"),
    (sac, "Replay.importance_exponent = 0.6", ": corrects ...; also set Replay.prio..."),
    (world_model, "Replay.discount = 0.9", "...discount is never used: the program gives ..."),
    (world_model, "Replay.importance_exponent = 0.6", "...exponent is never used: the pro..."),
    (ppo, "make_actor.processes = 2", ": this agent is on-policy, ...; use 0"),
    (world_model, "make_actor.processes = 2", ": this agent's policy is recurrent, ...; use 0"),
    (ppo, "Rollouts.gae_lambda = 1.5", ": must be from 0 to 1"),
    (ppo, "PPO.clip_range = 0", ": must be above 0"),
]
ALWAYS = "mine:Mine-v0: environment 0 failed 10 times without a successful ...; the last time: "
SPACE = "], is not in its observation_space, Box(-1.0, 1.0, (2,), float32)"
CODE = [  # What stands in the environment in place of what, and the error of each step.
    ("step(self, action)", "step(self)",
     "TypeError: Mine.step() takes 1 positional argument but 2 were given"),
    ("return np.zeros(2), {}", "raise OSError('no level 1')", "OSError: no level 1"),
    ("np.zeros(2), 0.0", "np.zeros(3), 0.0", f"ValueError: its observation, float32 [3{SPACE}"),
    ("np.zeros(2), 0.0", "['up', 'down'], 0.0",
     "ValueError: could not convert string to float: 'up'"),
    ("np.zeros(2), 0.0", "np.full(2, np.nan), 0.0", "its observation is not finite"),
    ("0.0, False", "np.nan, False", "its reward is nan"),
    ("0.0, False", "np.ones(2), False", "ValueError: its reward is 2 numbers; it must be one"),
]


OLD = [  # The same for what is as in Gym, and the rest of the line.
    ("return np.zeros(2), {}", "return np.zeros(2)",
     "its reset returned one value, of the type ndarray, as in Gym before ...; write ..."),
    ("reset(self, seed=None, options=None)", "reset(self)",
     "its reset takes no seed, as in Gym before Gymnasium; write ..."),
    ("False, False, {}", "False, {}", "its step does not return five values, as ...; return ..."),
]


@pytest.fixture
def agent(run, folder, monkeypatch):
  """A function that trains an agent for two steps with bindings; returns status and last line."""
  monkeypatch.syspath_prepend(folder)

  def agent(program, *bindings: str) -> tuple[int, str]:
    shutil.rmtree(folder / "run", ignore_errors=True)
    with eagerly():
      status, err = run(program, [
          f"--gin_file=configs/{CONFIG[program]}.gin", f"--workdir={folder / 'run'}",
          *(f"--gin_param={each}" for each in [*COMMON, *SMALL.get(program, REPLAYED), *bindings])])
    return status, err[err.index("error: "):]  # After the warnings.
  return agent


@pytest.mark.parametrize("program, binding, line", SETTINGS)
def test_a_setting_that_cannot_work_is_named(program, binding, line, agent):
  assert_line(agent(program, binding), USAGE, binding + line if line[0] == ":" else line)


@pytest.mark.parametrize("old, new, status, line", [
    *((old, new, FAILED, ALWAYS + line) for old, new, line in CODE),
    *((old, new, USAGE, f"Environments.name = 'mine:Mine-v0': {line}") for old, new, line in OLD)])
def test_a_fault_of_an_environment_is_named(old, new, status, line, agent, folder, monkeypatch):
  (folder / "mine.py").write_text(MODULE.replace(old, new))
  monkeypatch.setattr(sys, "dont_write_bytecode", True)  # The file is another one each time.
  monkeypatch.delitem(sys.modules, "mine", raising=False)
  monkeypatch.setitem(gymnasium.registry, "Mine-v0", None)  # It is gone after the test.
  del gymnasium.registry["Mine-v0"]
  assert MODULE.count(old) == 1
  assert_line(agent(sac, "Environments.name = 'mine:Mine-v0'"), status, line)
