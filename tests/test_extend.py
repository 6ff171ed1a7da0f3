"""The page "Extend without editing": its files make a project of a user, whose commands train."""

import json
import re

from tests import pages
from tests.programs import logs
from tests.programs.processes import forked

import pytest

BLOCKS = pages.blocks_of(pages.EXTEND)
FILES = {block.title: block.text for block in BLOCKS if block.title}
COMMANDS = {words[-1].removeprefix("--gin_file="): words for block in BLOCKS
            if block.language == "bash" for words in pages.commands_of(block)}
GIN = sorted(name for name in FILES if name.endswith(".gin"))
SHORT = [f"--gin_param={binding}" for binding in (
    "train.steps = 2", "train.log_every = 1", "train.eval_every = 2", "train.checkpoint_every = 2",
    "train.steps_per_call = 1", "train.global_batch_size = 16")]
SMALL_AGENT = [f"--gin_param={binding}" for binding in (
    "Replicator.jit_compile = False", "RateLimiter.learning_starts = 60",
    "Environments.max_episode_steps = 25", "Exploration.random_steps = 40",
    "EpisodeEvaluator.episodes = 1")]


@pytest.fixture
def project(tmp_path):
  """A folder with the files of the page."""
  for name, text in FILES.items():
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
  return tmp_path


def train(project, words: list[str]) -> list[dict]:
  """Trains for two steps by a command; returns the rows that it logs."""
  agent = SMALL_AGENT if "experiments.sac" in words else []
  forked(*words[1:], *SHORT, *agent, f"--workdir={project / 'run'}", cwd=project)
  rows = logs.rows(project / "run")
  assert rows[-1]["step"] == 2
  return rows


def test_the_page_has_eight_parts_each_with_its_files_and_its_command():
  sections = re.split(r"^## ", pages.EXTEND.read_text(), flags=re.MULTILINE)[1:-1]
  assert len(sections) == len(GIN) == 8 and set(GIN) <= set(COMMANDS)
  for section in sections:
    module, gin, *_ = re.findall(r'title="(.+?)"', section)
    assert f"import {module[:-3].replace('/', '.')}\n" in FILES[gin]
    assert f"--gin_file={gin}\n" in section


def test_all_parts_of_a_gan_train_together(project):
  others = [name for name in GIN if name not in ("my_networks.gin", "my_environment.gin")]
  rows = train(project, ["python", "-m", "experiments.gan", "--gin_file=my_networks.gin",
                         *(f"--gin_file={name}" for name in others)])
  evaluated = {name: value for row in rows for name, value in row.items() if "contrast" in name}
  assert 0 < evaluated["eval/contrast"] < evaluated["eval/contrast_of_data"]
  assert all(row["penalty"] > 0 for row in rows if "penalty" in row)
  lines = (project / "run" / "lines.txt").read_text().splitlines()
  assert len(lines) == 4 and lines[-1] == "finished"


@pytest.mark.slow
def test_an_agent_trains_in_an_environment(project):
  assert train(project, COMMANDS["my_environment.gin"])[-1]["eval/return"] < 0
  method = json.loads((project / "run" / "run.json").read_text())["evaluation"]
  assert "the picture shows the first episode" in method


@pytest.mark.slow
def test_a_command_takes_data_of_a_module(project):
  (words,) = (words for words in COMMANDS.values() if "preview" in words)
  forked("-m", *words, cwd=project)
  assert "columns" in (project / "preview.html").read_text()
