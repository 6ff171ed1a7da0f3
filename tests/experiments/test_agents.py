"""Agents: the strategy does not change their training, and runs resume exactly."""

import contextlib
import functools
import itertools
import json
import pathlib

from experiments import d4pg, dqn, mpo, ppo, sac, td3, world_model
from models.rl import agents
from models.rl.actor_pool.policy_graph import ExportedPolicy, imported
from models.rl.environments.environments import Environments
from replicator.app import config
from replicator.training.checkpoints import store
from tests.programs import logs
from tests.programs.capabilities import eagerly
from tests.programs.processes import ROOT, launched

import numpy as np
import pytest

_COMMON = [
    "Replicator.jit_compile = False", "train.steps_per_call = 1", "train.log_every = 1",
    "train.eval_every = 0", "train.checkpoint_every = 10", "train.steps = 10",
    "train.global_batch_size = 16", "Environments.number = 2",
    "Environments.max_episode_steps = 25", "EpisodeEvaluator.episodes = 2"]
_REPLAYED = [*_COMMON, "RateLimiter.learning_starts = 60", "RateLimiter.update_ratio = 0.25",
             "Exploration.random_steps = 40", "Replay.capacity = 80"]
SMALL = [*_REPLAYED, "Policy.sizes = (16, 16)", "Critic.sizes = (16, 16)"]
SMALL_OF = {"d4pg": [*SMALL, "Replay.n_step = 5"],
            "dqn": [*_REPLAYED, "ActionValues.sizes = (16, 16)"],
            "ppo": [*_COMMON, "Policy.sizes = (16, 16)", "Rollouts.length = 16",
                    "Rollouts.epochs = 2"],
            "world": [*_REPLAYED, "train.steps = 3", "SequenceReplay.length = 4",
                      "Dreamer.horizon = 3", "RSSM.deterministic = 8", "RSSM.latents = 3",
                      "RSSM.classes = 4", "RSSM.units = 8", "NormalizedMLP.units = 8",
                      "WorldModel.embedding = 8", "TwoHot.bins = 11", "TwoHot.limit = 5.0"]}
MAINS = {"d4pg_pendulum": d4pg.d4pg, "ddpg_pendulum": d4pg.d4pg, "sac_pendulum": sac.sac,
         "td3_pendulum": td3.td3, "dqn_cartpole": dqn.dqn, "ppo_cartpole": ppo.ppo,
         "ppo_pendulum": ppo.ppo, "mpo_pendulum": mpo.mpo,
         "world_model_pendulum": world_model.world_model}
STRATEGIES = {
    "one device": ["Replicator.strategy = 'one_device'"],
    "mirrored 2": ["Replicator.strategy = 'mirrored'", "Replicator.logical_cpus = 2"],
    "central storage 2": ["Replicator.strategy = 'central_storage'", "Replicator.logical_cpus = 2"],
}
FLOAT64 = ["train.precision = 'float64'", "train.check_first_step = False"]
PRIORITIZED = ["Replay.priority_exponent = 0.6"]
STACKED_AND_NOISY = ["Environments.stack = 3", "ActionValues.noise = 0.5"]


def configure(agent: str, *bindings: str) -> str:
  """Reads a configuration, that of the pendulum if none is named; returns its name."""
  agent = agent if "_" in agent else f"{agent}_pendulum"
  small = SMALL_OF.get(agent.split("_")[0], SMALL)
  config.parse([str(ROOT / "configs" / f"{agent}.gin")], [*small, *bindings])
  return agent


def train(agent: str, workdir: pathlib.Path, *bindings: str) -> list[dict]:
  MAINS[configure(agent, *bindings)](str(workdir))
  return logs.rows(workdir)


def launch(workdir: pathlib.Path, cluster: list[str], *bindings: str) -> None:
  """Trains D4PG in the processes of a cluster."""
  launched(cluster, "experiments.d4pg", "--gin_file=configs/d4pg_pendulum.gin",
           f"--workdir={workdir}", bindings=[*SMALL_OF["d4pg"], *bindings])


# Observations and actions are stored in float32, whatever the precision of the networks.
assert_same_runs = functools.partial(logs.assert_same_runs, rtol=1e-5, atol=1e-6)


# ---- Strategies ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
  """Gives the workdir of an agent trained on one device, once for each setting."""
  made: dict[tuple, pathlib.Path] = {}

  def workdir(agent: str, *bindings: str) -> pathlib.Path:
    key = (agent, *bindings)
    if key not in made:
      made[key] = tmp_path_factory.mktemp(agent)
      with eagerly():  # To compile it takes longer.
        train(agent, made[key], *STRATEGIES["one device"], *bindings)
    return made[key]
  return workdir


@pytest.mark.parametrize("agent, name, more", [
    ("d4pg", "mirrored 2", PRIORITIZED),
    pytest.param("d4pg", "central storage 2", PRIORITIZED, marks=pytest.mark.slow),
    pytest.param("sac", "central storage 2", [], marks=pytest.mark.slow),
    pytest.param("td3", "mirrored 2", [], marks=pytest.mark.slow),
    pytest.param("dqn_cartpole", "mirrored 2", STACKED_AND_NOISY, marks=pytest.mark.slow),
    pytest.param("mpo", "mirrored 2", [], marks=pytest.mark.slow),
    pytest.param("world_model_pendulum", "mirrored 2", [], marks=pytest.mark.slow),
    pytest.param("world_model_pendulum", "central storage 2", [], marks=pytest.mark.slow),
    ("ppo", "mirrored 2", []),
    pytest.param("ppo_cartpole", "mirrored 2", [], marks=pytest.mark.slow)])
def test_strategy_does_not_change_the_training_in_float64(agent, name, more, one_device, tmp_path):
  train(agent, tmp_path, *FLOAT64, *more, *STRATEGIES[name])
  assert_same_runs(tmp_path, one_device(agent, *FLOAT64, *more))


@pytest.mark.slow
def test_two_processes_do_not_change_the_training_in_float64(one_device, tmp_path):
  launch(tmp_path, ["--workers=2"], *FLOAT64, "Replicator.strategy = 'multi_worker_mirrored'")
  assert_same_runs(tmp_path, one_device("d4pg", *FLOAT64))


@pytest.mark.slow
def test_asynchronous_workers_learn_from_a_replay_on_a_parameter_server_and_resume(tmp_path):
  for workers, steps in ((1, 10), (2, 20)):
    launch(tmp_path, [f"--workers={workers}", "--ps=1"], *PRIORITIZED,
           "Replicator.strategy = 'parameter_server'", f"train.steps = {steps}")
  rows = logs.rows(tmp_path)
  assert rows[-1]["step"] == 20
  # 60 before the first step, and 4 for each.
  assert rows[-1]["environment_steps"] == pytest.approx(60 + 20 * 4, abs=8)
  assert np.isfinite([row["loss/critic"] for row in rows]).all()


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["d4pg", "sac"])
def test_xla_and_several_steps_a_call_do_not_change_the_training(agent, one_device, tmp_path):
  more = [*FLOAT64, "RateLimiter.update_ratio = 1e8", "train.log_every = 5"]
  train(agent, tmp_path, *more, "Replicator.jit_compile = True", "train.steps_per_call = 5")
  assert_same_runs(tmp_path, one_device(agent, *more))


# ---- Resuming -----------------------------------------------------------------------------------


# An evaluation calls the policy for another number of observations than the actor. These networks
# are large enough for that number to change how their sums are rounded.
EVALUATED = ["train.eval_every = 2", "Environments.number = 1", "EpisodeEvaluator.episodes = 3",
             "RateLimiter.learning_starts = 30", "Policy.sizes = (64, 64)",
             "EpisodeEvaluator.picture = False"]

END = "linear.end = 10"  # By default, a schedule ends with the run.


@pytest.mark.slow
@pytest.mark.parametrize("agent, more, is_compiled", [
    ("d4pg", [*PRIORITIZED, *STRATEGIES["mirrored 2"]], False), ("td3", [], False),
    ("dqn_cartpole", ["train.eval_every = 2", END, *STACKED_AND_NOISY], False),
    ("ppo_cartpole", [END, f"clip_range/{END}"], False),
    ("world_model_pendulum", ["train.eval_every = 2"], False),
    ("ppo", ["train.eval_every = 2", END, "make_actor.normalize_rewards = True",
             *STRATEGIES["mirrored 2"]], False),  # Within a rollout.
    ("sac", [*PRIORITIZED, *EVALUATED, "train.steps_per_call = 2", "train.log_every = 2"], True)])
def test_a_run_in_parts_equals_the_whole_bit_for_bit(agent, more, is_compiled, tmp_path):
  with contextlib.nullcontext() if is_compiled else eagerly():
    for folder, steps in (("whole", 10), ("parts", 6), ("parts", 10)):
      train(agent, tmp_path / folder, *more, f"train.steps = {steps}")
  assert logs.rows(tmp_path / "parts") == logs.rows(tmp_path / "whole")
  found, expected = (store.read(tmp_path / name / "checkpoints")
                     for name in ("parts", "whole"))
  assert found.keys() == expected.keys()
  assert [path for path in found if found[path].tobytes() != expected[path].tobytes()] == []


def test_evaluations_are_logged_with_their_spread(tmp_path, capsys):
  rows = train("d4pg", tmp_path, "train.eval_every = 10", "EpisodeEvaluator.picture = False")
  assert all(0 <= row["clipped_returns"] < 0.1 for row in rows[1:])
  assert "clipped_returns is" not in capsys.readouterr().out
  assert [row["eval/environment_steps"] for row in (rows[0], rows[-1])] == [0, 96]
  assert json.loads((tmp_path / "run.json").read_text())["axes"] == ["eval/environment_steps"]
  for row in (rows[0], rows[-1]):
    assert row["eval/return_min"] <= row["eval/return"] <= row["eval/return_max"] <= 0.0
  assert [row["environment_steps"] for row in rows[1:]] == [60 + 4 * i for i in range(10)]
  # 60 timesteps, 4 for each training step, and one more for each end of 2 episodes of 25 steps.
  written = [60 + 4 * i + 2 * ((60 + 4 * i) // 50) for i in range(10)]
  np.testing.assert_allclose([row["samples_per_insert"] for row in rows[1:]],
                             [16 * (i + 1) / written[i] for i in range(10)], rtol=1e-6)
  # After a resume with other batches, the draws before it still count.
  rows = train("d4pg", tmp_path, "train.steps = 20", "train.global_batch_size = 8",
               "train.steps_per_call = 5", "train.log_every = 10",
               "CategoricalReturns.v_min = -1.0", "CategoricalReturns.v_max = 1.0")
  assert capsys.readouterr().out.count("warning: clipped_returns is ") == 1
  assert rows[-1]["clipped_returns"] > 0.5
  written = rows[-1]["environment_steps"] + 2 * (rows[-1]["environment_steps"] // 50)
  assert rows[-1]["samples_per_insert"] == pytest.approx((10 * 16 + 10 * 8) / written, rel=1e-6)
  # Each stream stores 40 timesteps. The last 5 have no return yet, and ends are no transitions.
  assert 60 < rows[-1]["replay_size"] <= 70 and "largest_priority" not in rows[-1]
  assert "eval/return" in (tmp_path / "report.html").read_text()


# ---- What the steps compute ---------------------------------------------------------------------


def make(kind: str, *bindings: str):
  configure(kind, *bindings)
  return {"d4pg": d4pg.D4PG, "sac": sac.SAC, "td3": td3.TD3, "dqn_cartpole": dqn.DQN}[kind](
      Environments())


# After 60 environment steps there is a training step for each: the 100th follows 160.
A_STEP_FOR_EACH = "RateLimiter.update_ratio = 1.0"


def test_random_actions_become_rarer_in_other_processes_too():
  agent = make("dqn_cartpole", A_STEP_FOR_EACH, "linear.final = 0.0", "linear.end = 100")
  policy = ExportedPolicy(agent.act, (4,), "float32", 2)
  act, load = imported(policy.graph, policy.weights())
  draw = np.random.default_rng(0).normal
  observations, noise = (draw(size=[2000, n]).astype(np.float32) for n in (4, 2))
  # Half of them are the greedy ones.
  for steps, share in ((0, 0.5), (60, 0.5), (110, 0.25), (160, 0.0)):
    agent.actor.environment_steps.assign(steps)
    load(policy.weights())
    found = act(observations, noise)
    np.testing.assert_array_equal(found, agent.act(observations, noise))
    others = (found != agent.act(observations, 0 * noise).numpy()).any(1)
    assert others.mean() == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize("agent", ["d4pg", "td3", "sac"])
def test_exploration_becomes_less_with_training_steps(agent):
  agent = make(agent, A_STEP_FOR_EACH, f"{agent.upper()}.noise = @linear()", "linear.initial = 0.2",
               "linear.final = 0.0", "linear.end = 100")
  observations, noise = np.zeros([1, 3], np.float32), np.ones([1, 1], np.float32)
  moved = []
  for steps in (60, 110, 160):
    agent.actor.environment_steps.assign(steps)
    moved.append(float((agent.act(observations, noise) - agent.act(observations, 0 * noise))[0, 0]))
  assert moved[0] > 0.01 and moved[2] == 0
  assert moved[1] == pytest.approx(moved[0] / 2, rel=0.1)


@pytest.mark.slow
def test_actors_in_processes_send_stacks_and_act_with_noisy_layers(tmp_path):
  configure("dqn_cartpole", *STACKED_AND_NOISY, "make_actor.processes = 2", "Replay.n_step = 2")
  agent = agents.train(dqn.DQN, Environments, str(tmp_path))
  drawn = agent.replay.sample(200)
  for observation in (drawn.observation, drawn.next_observation):
    for before, after in itertools.pairwise(np.split(observation, 3, 1)):
      is_first = (before == after).all(1)
      moved = before[:, 0] + 0.02 * before[:, 1]  # The cart's place a step later.
      np.testing.assert_allclose(after[:, 0], np.where(is_first, before[:, 0], moved), atol=1e-6)
      assert is_first.mean() < 0.5
