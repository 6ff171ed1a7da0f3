"""Environment steps and training steps: which belong together, and how many a run has."""

import fractions
import types

from experiments import d4pg, dqn, mpo, ppo, sac, td3, world_model  # noqa: F401  (for gin)
from models.rl.rate_limiter import RateLimiter, acting_in, check_on_policy, training_steps
from replicator import UsageError
from replicator.app import config
from tests.programs.processes import ROOT

import pytest
import tensorflow as tf

RATIOS = {1.0: "1", 0.125: "1/8", 4.0: "4", 1 / 3: "1/3", 0.3333333: "1/3", 0.1: "1/10",
          1.6666667: "5/3", 0.0625: "1/16", 1e-6: "1/1000000"}


@pytest.mark.parametrize("ratio", RATIOS)
def test_training_steps_and_environment_steps_are_exact(ratio):
  exact, limiter = fractions.Fraction(RATIOS[ratio]), RateLimiter(1000, ratio)
  for step in (0, 1, 2, 3, 7, 10, 999, 1_000_000, 3_000_000_001):
    assert limiter.environment_steps(step) == 1000 + step // exact
  for steps in (0, 999, 1000, 1001, 1003, 1010, 31_000, 9_000_001_000):
    found = limiter.training_step(tf.constant(steps, tf.int64))
    assert found.dtype == tf.int64 and int(found) == max(steps - 1000, 0) * exact // 1


@pytest.mark.parametrize("total, ratio, each, steps", [
    (11_000, 1.0, 10, 10_000), (1001, 1.0, 1, 1), (1001, 0.125, 1, 1), (1012, 1.0, 10, 20),
    (1010, 4.0, 1, 40), (2000, 1 / 3, 1, 333)])
def test_a_run_has_the_training_steps_of_its_environment_steps(total, ratio, each, steps):
  config.parse([], [f"training_steps.total_environment_steps = {total}", "CALL = 10",
                    f"RateLimiter.update_ratio = {ratio}",
                    f"train.steps_per_call = {'%CALL' if each == 10 else each}",
                    "train.log_every = %CALL", "train.steps = @training_steps()"])
  assert training_steps() == steps


@pytest.mark.parametrize("total, frames, steps", [
    (1024, 1, 4 * 8), (1025, 1, 5 * 8), (1, 1, 8), (1024, 4, 8)])
def test_on_policy_runs_have_whole_rollouts(total, frames, steps):
  config.parse([], [f"training_steps.total_environment_steps = {total}",
                    "training_steps.on_policy = True", "Rollouts.length = 64",
                    "Rollouts.epochs = 2", "train.global_batch_size = 64"])
  with acting_in(types.SimpleNamespace(number=4, frames_per_step=frames)):
    assert training_steps() == steps


LENGTHS = {
    "d4pg_cartpole_swingup": 24_500, "d4pg_cheetah_run": 60_000, "d4pg_control": 12_500,
    "d4pg_pendulum": 10_000, "d4pg_pixels": 100_000, "d4pg_walker_walk": 120_000,
    "ddpg_pendulum": 10_000, "dqn_atari": 2_500_000, "dqn_bits": 5000, "dqn_cartpole": 25_000,
    "dqn_minatar": 50_000, "mpo_pendulum": 10_000, "ppo_cartpole": 8000, "ppo_pendulum": 16_000,
    "sac_control": 50_000, "sac_mountain_car": 20_000, "sac_pendulum": 10_000,
    "td3_pendulum": 10_000, "world_model_cartpole_swingup": 24_000, "world_model_pendulum": 6000}


@pytest.mark.parametrize("name", LENGTHS)
def test_the_lengths_of_the_configurations(name):
  config.parse([str(ROOT / "configs" / f"{name}.gin")], [])
  with acting_in(types.SimpleNamespace(number=8, frames_per_step=1)):
    assert training_steps() == LENGTHS[name]


@pytest.mark.parametrize("total", [1, 1000])
def test_a_run_that_ends_before_its_first_training_step_is_refused(total):
  config.parse([], [f"training_steps.total_environment_steps = {total}"])
  with pytest.raises(UsageError, match=rf"total_environment_steps = {total}: training begins "
                     r"after RateLimiter.learning_starts = 1000 of them; use more"):
    training_steps()


def test_an_agent_of_the_other_kind_is_refused():
  config.parse([], ["training_steps.total_environment_steps = 2000"])
  with acting_in(types.SimpleNamespace(number=8, frames_per_step=1)):
    check_on_policy(has_rollouts=True)  # The run has a number of training steps.
    training_steps()
    check_on_policy(has_rollouts=False)
    with pytest.raises(UsageError, match=r"on_policy = False: .* learns from Rollouts; use True"):
      check_on_policy(has_rollouts=True)
