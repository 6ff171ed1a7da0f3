"""The mistakes of a newcomer with an agent and its environments: the line of each.

Every row runs as on the command line, in one process.
"""

import shutil
import sys

import gymnasium
import pytest

from experiments.dqn import dqn
from experiments.ppo import ppo
from experiments.sac import sac
from tests.mistakes.conftest import FAILED, USAGE, assert_line
from tests.programs.capabilities import eagerly

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
REPLAYED = ["RateLimiter.start = 30", "Exploration.random_steps = 10", "Replay.capacity = 100"]
SMALL = {sac: [*REPLAYED, "Policy.sizes = (4, 4)", "Critic.sizes = (4, 4)"],
         dqn: [*REPLAYED, "ActionValues.sizes = (4, 4)"],
         ppo: ["Policy.sizes = (4, 4)", "Rollouts.length = 16"]}
CONFIG = {sac: "sac_pendulum", dqn: "dqn_cartpole", ppo: "ppo_cartpole"}
COMMON = ["train.steps = 2", "train.steps_per_call = 1", "train.log_every = 1",
          "train.eval_every = 0", "train.checkpoint_every = 0", "train.global_batch_size = 4",
          "Replicator.jit_compile = False"]

SETTINGS = [  # The program, a binding, and the line.
    (sac, "Environments.name = 'Pendulum-v9'",
     "Environments.name = 'Pendulum-v9': there is no such environment. Did you mean 'Pendulum-v1'? "
     "..."),
    (sac, "Environments.name = 'ALE/Pong-v5'",
     "Environments.name = 'ALE/Pong-v5': there is no such environment. ... One that a module "
     "registers is written 'module:Name-v0', as 'ale_py:ALE/Pong-v5'."),
    (sac, "Environments.name = 'no_such_module:Pong-v5'",
     "Environments.name = 'no_such_module:Pong-v5' needs no_such_module, which is not installed; "
     "install it, or start where Python finds a module no_such_module"),
    (sac, "Environments.number = 2.0",
     "--gin_param: Environments.number = 2.0: must be int, not float. Write 2"),
    (sac, "Environments.kwargs = {'gravity': 1.0}",
     "Environments.name = 'Pendulum-v1' cannot be made: TypeError: ... unexpected keyword argument "
     "'gravity'"),
    (sac, "Environments.wrappers = {'gymnasium.wrappers.ClipReward': {}}",
     "Environments.wrappers: 'gymnasium.wrappers.ClipReward' cannot be loaded; write "
     "'module:Class', such as 'gymnasium.wrappers:ClipReward'"),
    (sac, "RateLimiter.samples_per_insert = 0",
     "RateLimiter.samples_per_insert = 0: must be above 0"),
    (sac, "RateLimiter.start = 0", "RateLimiter.start = 0: must be above 0"),
    (sac, "Replay.capacity = 1", "Replay.capacity = 1: leaves each stream 1 timesteps, too ..."),
    (sac, "Replay.discount = 1.5", "Replay.discount = 1.5: must be from 0 to 1"),
    (sac, "Exploration.noise = 'pink'",
     "--gin_param: Exploration.noise = 'pink': must be a function ... Did you mean 'PinkNoise'?"),
    (sac, "Exploration.noise = @PinkNoise",
     "Exploration.noise = @PinkNoise: write brackets behind it, @PinkNoise()"),
    (sac, "Actor.random_steps = 10",
     "--gin_param: Actor.random_steps has another name now: write Exploration.random_steps"),
    (sac, "SAC.temperature = 0", "SAC.temperature = 0: must be above 0"),
    (sac, "Policy.sizes = ()", "Policy.sizes = (): write one or more"),
    (sac, "Normalizer.limit = 0", "Normalizer.limit = 0: must be above 0"),
    (dqn, "DQN.epsilon = 1.5", "DQN.epsilon = 1.5: must be from 0 to 1"),
    (ppo, "train.global_batch_size = 5",
     "Rollouts.length = 16: times Environments.number = 8 must be a multiple of "
     "train.global_batch_size = 5, the size of a minibatch"),
    (ppo, "Rollouts.gae_lambda = 1.5", "Rollouts.gae_lambda = 1.5: must be from 0 to 1"),
    (ppo, "PPO.clip = 0", "PPO.clip = 0: must be above 0"),
]
ALWAYS = ("Mine-v0: environment 0 failed 10 times without a good step in between; the last time: ")
SPACE = "Environments.name = 'Mine-v0': its "
CODE = [  # What stands in the environment in place of what, the exit status, and the line.
    ("Box(-1, 1, [1])", "Box(-np.inf, np.inf, [1])", USAGE,
     SPACE + "actions Box(-inf, inf, (1,), float32) have no bounds, so ..."),
    ("Box(-1, 1, [1])", "MultiDiscrete([2, 3])", USAGE,
     SPACE + "actions are MultiDiscrete([2 3]); choose an environment whose actions are a Box ..."),
    ("Box(-1, 1, [2])", "Dict(a=Sequence(Discrete(2)))", USAGE,
     SPACE + "observations Dict('a': ... do not make a vector of fixed length; ..."),
    ("step(self, action)", "step(self)", FAILED,
     ALWAYS + "TypeError: Mine.step() takes 1 positional argument but 2 were given"),
    ("return np.zeros(2), {}", "raise OSError('no level 1')", FAILED,
     ALWAYS + "OSError: no level 1"),
    ("return np.zeros(2), {}", "return np.zeros(2)", FAILED,
     ALWAYS + "ValueError: its observation, float32 [1], is not in its observation_space, "
     "Box(-1.0, 1.0, (2,), float32)"),
    ("np.zeros(2), 0.0", "np.zeros(3), 0.0", FAILED,
     ALWAYS + "ValueError: its observation, float32 [3], is not in its observation_space, "
     "Box(-1.0, 1.0, (2,), float32)"),
    ("np.zeros(2), 0.0", "['up', 'down'], 0.0", FAILED,
     ALWAYS + "ValueError: could not convert string to float: 'up'"),
    ("np.zeros(2), 0.0", "np.full(2, np.nan), 0.0", FAILED,
     ALWAYS + "its observation is not finite"),
    ("0.0, False", "np.nan, False", FAILED, ALWAYS + "its reward is nan"),
    ("0.0, False", "np.ones(2), False", FAILED,
     ALWAYS + "ValueError: its reward is 2 numbers; it must be one"),
    ("False, False, {}", "False, {}", FAILED,
     ALWAYS + "ValueError: not enough values to unpack (expected 5, got 4); reset must return ..."),
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
          *(f"--gin_param={each}" for each in [*COMMON, *SMALL[program], *bindings])])
    return status, err[err.index("error: "):]  # After the warnings.
  return agent


@pytest.mark.parametrize("program, binding, line", SETTINGS)
def test_a_setting_that_cannot_work_is_named(program, binding, line, agent):
  assert_line(agent(program, binding), USAGE, line)


@pytest.mark.parametrize("old, new, status, line", CODE)
def test_a_fault_of_an_environment_is_named(old, new, status, line, agent, folder, monkeypatch):
  (folder / "mine.py").write_text(MODULE.replace(old, new))
  monkeypatch.setattr(sys, "dont_write_bytecode", True)  # The file is another one each time.
  monkeypatch.delitem(sys.modules, "mine", raising=False)
  monkeypatch.setitem(gymnasium.registry, "Mine-v0", None)  # It is gone after the test.
  del gymnasium.registry["Mine-v0"]
  assert MODULE.count(old) == 1
  assert_line(agent(sac, "Environments.name = 'mine:Mine-v0'"), status,
              line.replace("Mine-v0", "mine:Mine-v0"))
