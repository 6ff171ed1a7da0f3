"""What a user edits first in an agent's configuration, one line each, on the pendulum."""

from experiments import d4pg, ppo, sac, td3
from models.rl import agents
from models.rl.environments.environments import Environments
from replicator.app import config
from tests.programs import logs
from tests.programs.capabilities import eagerly
from tests.programs.processes import ROOT

import numpy as np
import pytest

# Six training steps, which begin after 10 environment steps.
SMALL = ["Policy.sizes = (4, 4)", "Critic.sizes = (4, 4)", "RateLimiter.learning_starts = 10",
         "Exploration.random_steps = 5", "Replay.capacity = 200", "train.global_batch_size = 4",
         "Environments.max_episode_steps = 25", "training_steps.total_environment_steps = 16"]
OF_RUN = ["train.steps_per_call = 1", "train.log_every = 1", "train.eval_every = 0",
          "train.checkpoint_every = 100", "Replicator.jit_compile = False"]


@pytest.fixture
def trained(tmp_path):
  """A function: the agent, and the rows of its log, of the small run with some edits."""
  def trained(kind, *edits, workdir="run", small=SMALL):
    name = f"{kind.__name__.lower()}_pendulum.gin"
    config.parse([str(ROOT / "configs" / name)], [*OF_RUN, *small, *edits])
    with eagerly():
      agent = agents.train(kind, Environments, str(tmp_path / workdir))
    return agent, logs.rows(tmp_path / workdir)
  return trained


@pytest.mark.slow
def test_a_run_that_is_twice_as_long(trained):
  _, rows = trained(sac.SAC, "training_steps.total_environment_steps = 32")
  assert rows[-1]["step"] == 32 - 10 and rows[-1]["environment_steps"] == 31


def test_four_updates_for_each_environment_step(trained):
  _, rows = trained(sac.SAC, "RateLimiter.update_ratio = 4.0",
                    "training_steps.total_environment_steps = 13")
  assert [row["environment_steps"] for row in rows] == [10 + i // 4 for i in range(12)]


def test_an_update_for_every_four_environment_steps_with_any_batch(trained):
  _, rows = trained(sac.SAC, "RateLimiter.update_ratio = 0.25", "train.global_batch_size = 8",
                    "training_steps.total_environment_steps = 34")
  assert [row["environment_steps"] for row in rows] == [10 + 4 * i for i in range(6)]


@pytest.mark.slow
def test_a_target_network_that_is_copied_at_every_fifth_update(trained):
  edits = "D4PG.tau = 1.0", "D4PG.target_update_period = 5"
  agent, _ = trained(d4pg.D4PG, *edits)
  earlier, _ = trained(d4pg.D4PG, *edits, "train.steps = 5", workdir="earlier")
  for name in ("policy", "critic"):
    for target, copied, now in zip(agent.optimizers[name].averages,
                                   earlier.optimizers[name].variables_updated,
                                   agent.optimizers[name].variables_updated, strict=True):
      np.testing.assert_array_equal(target, copied)
      assert len(now.shape) < 2 or np.any(now.numpy() != target.numpy())


def test_a_policy_that_moves_at_every_third_step(trained):
  agent, _ = trained(td3.TD3, "TD3.policy_delay = 3")
  made = {name: int(each.keras_optimizer.iterations.numpy())
          for name, each in agent.optimizers.items()}
  assert made == {"critics": 6, "policy": 2}


def test_a_number_of_training_steps(trained):
  _, rows = trained(sac.SAC, "train.steps = 3")
  assert rows[-1]["step"] == 3


@pytest.mark.slow
def test_a_run_that_goes_on_for_longer_says_what_changed(trained, capsys):
  trained(td3.TD3)
  _, rows = trained(td3.TD3, "training_steps.total_environment_steps = 20")
  assert rows[-1]["step"] == 10
  assert ("changed: training_steps.total_environment_steps = 20, was 16"
          in capsys.readouterr().out)


@pytest.mark.parametrize("kind", [
    sac.SAC, *(pytest.param(each, marks=pytest.mark.slow) for each in (td3.TD3, d4pg.D4PG))])
def test_the_record_of_a_run_is_a_configuration(trained, kind, tmp_path):
  _, rows = trained(kind, "train.steps = 2")
  config.parse([str(tmp_path / "run/config.gin")], [])
  with eagerly():
    agents.train(kind, Environments, str(tmp_path / "again"))
  names = rows[-1].keys() - {*logs.TIMES}
  again = logs.rows(tmp_path / "again")[-1]
  assert {name: again[name] for name in names} == {name: rows[-1][name] for name in names}


@pytest.mark.parametrize("total, rollouts", [(64, 2), (65, 3)])
def test_whole_rollouts(trained, total, rollouts):
  _, rows = trained(
      ppo.PPO, f"training_steps.total_environment_steps = {total}",
      small=["Policy.sizes = (4, 4)", "Rollouts.length = 16", "Rollouts.epochs = 2",
             "Environments.number = 2", "train.global_batch_size = 16"])
  assert rows[-1]["step"] == rollouts * 4
  assert rows[-1]["environment_steps"] == rollouts * 32


@pytest.mark.slow
def test_frames_of_a_repeated_action_are_environment_steps(trained):
  wrapper = "{'models.rl.environments.action_repeat:ActionRepeat': {'repeat': 3}}"
  _, rows = trained(sac.SAC, f"Environments.wrappers = {wrapper}",
                    "RateLimiter.update_ratio = 0.3333333", "train.eval_every = 100",
                    "EpisodeEvaluator.episodes = 1", "EpisodeEvaluator.picture = False",
                    "training_steps.total_environment_steps = 30")
  assert [row["environment_steps"] for row in rows if "loss/critics" in row] == [
      12 + 3 * i for i in range(6)]
  assert [row["eval/environment_steps"] for row in (rows[0], rows[-1])] == [0, 27]
