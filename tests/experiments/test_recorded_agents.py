"""Agents of recorded episodes: TD3+BC, and the agent of the documentation that imitates."""

import pathlib
import runpy
import sys

from experiments import td3
from models.rl.environments.environments import Environments
from models.rl.recording import conversion, dataset
from replicator.app import config
from tests import pages
from tests.experiments.test_agents import FLOAT64, SMALL, STRATEGIES, assert_same_runs
from tests.programs import logs
from tests.programs.capabilities import eagerly

import numpy as np
import pytest


@pytest.fixture(scope="module")
def episodes(tmp_path_factory) -> pathlib.Path:
  """A data set of two short episodes of the pendulum, with random actions."""
  folder = tmp_path_factory.mktemp("data") / "random-v0"
  environments, draw, played = Environments("Pendulum-v1", max_episode_steps=25), np.random, []
  for seed in range(2):
    seen = [environments.reset({0: seed})[0][0]]
    taken = draw.default_rng(seed).uniform(-1, 1, [25, 1]).astype(np.float32)
    outcomes = [environments.step(action[np.newaxis]) for action in taken]
    seen += [outcome.observation[0] for outcome in outcomes]
    rewards = np.array([outcome.reward[0] for outcome in outcomes])
    played.append(conversion.episode_of(environments, np.stack(seen), taken, rewards, False))
  dataset.write(folder, played, *environments.spaces)
  return folder


def train(workdir: pathlib.Path, episodes: pathlib.Path, *bindings: str) -> list[dict]:
  config.parse([str(pages.ROOT / "configs/td3_recorded.gin")],
               [*SMALL, f"make_actor.recorded = '{episodes}'", *bindings])
  td3.td3(str(workdir))
  return logs.rows(workdir)


def test_an_offline_agent_resumes_exactly_and_takes_no_step(episodes, tmp_path):
  with eagerly():
    for folder, steps in (("whole", 4), ("parts", 2), ("parts", 4)):
      train(tmp_path / folder, episodes, f"train.steps = {steps}", "train.checkpoint_every = 2")
  rows = logs.rows(tmp_path / "whole")
  assert rows == logs.rows(tmp_path / "parts")
  assert [row["replay_size"] for row in rows if "loss/critics" in row] == [50] * 4
  assert "environment_steps" not in rows[-1]


@pytest.mark.slow
def test_replicas_do_not_change_an_offline_agent_in_float64(episodes, tmp_path):
  with eagerly():
    train(tmp_path / "one", episodes, *FLOAT64, *STRATEGIES["one device"])
  train(tmp_path / "two", episodes, *FLOAT64, *STRATEGIES["mirrored 2"])
  assert_same_runs(tmp_path / "two", tmp_path / "one")


def test_the_agent_of_the_page_imitates(episodes, tmp_path, monkeypatch):
  page = pages.ROOT / "docs/howto/recorded.md"
  (block,) = [each for each in pages.blocks_of(page) if each.title == "imitation.py"]
  (words,) = [words for each in pages.blocks_of(page) if "imitation.py --gin" in each.text
              and each.language == "bash" for words in pages.commands_of(each)]
  file = tmp_path / "imitation.py"
  file.write_text(block.text)
  few = {**dict(binding.split(" = ") for binding in SMALL), "train.steps": 2,
         "imitation.recorded": f"'{episodes}'"}
  monkeypatch.setattr(sys, "argv", [
      str(file), *words[2:], *(f"--gin_param={name} = {value}" for name, value in few.items()),
      f"--workdir={tmp_path / 'run'}"])
  with eagerly(), pytest.raises(SystemExit) as end:
    runpy.run_path(str(file), run_name="__main__")
  assert end.value.code == 0
  rows = [row for row in logs.rows(tmp_path / "run") if "loss/discriminator" in row]
  assert len(rows) == 2 and 0 < rows[-1]["reward"] < 1
