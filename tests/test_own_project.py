"""A project of the user's beside this one: its packages, its gin files, and the commands in it."""

import re

from replicator import UsageError
from replicator.console import gin_files, programs
from tests.programs.processes import ROOT, python

import pytest

# Both load no TensorFlow.
OWN = '"""An experiment of my own."""\nimport replicator\nfrom models import export, mine\n'
# As after an install from a wheel: that of a clone finds its modules past any package.
INSTALLED = """import sys, runpy
sys.meta_path[:] = [each for each in sys.meta_path if "editable" not in str(each)]
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
  """A working directory with packages and gin files of the same names as this project's."""
  for name, text in {"experiments/own.py": OWN, "models/mine.py": "",
                     "configs/own.gin": "", "configs/sngan.gin": "# Mine.\n"}.items():
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
  monkeypatch.chdir(tmp_path)
  return tmp_path


@pytest.mark.parametrize("has_init", [False, True])
def test_packages_of_the_user_merge_with_these_however_they_are_installed(project, has_init):
  if has_init:
    (project / "models" / "__init__.py").touch()
  python("-m", "experiments.own", cwd=project)
  python("-c", INSTALLED, "experiments.own", cwd=project)


def test_all_experiments_are_listed_with_their_first_lines(project):
  lines = python("-m", "experiments", cwd=project).stdout.splitlines()
  listed = [re.sub(" {2,}", "  ", line) for line in lines]  # The longest name sets the column.
  assert "own  An experiment of my own. (experiments/own.py)" in listed
  assert "sngan  SN-GAN with an encoder: three networks trained in one replica step." in listed
  assert not any(line.startswith(("sweep", "__main__")) for line in listed)


def test_a_gin_file_is_found_by_its_name(project):
  assert gin_files.found("configs/own.gin") == "configs/own.gin"
  assert gin_files.found("own.gin") == "configs/own.gin"
  assert gin_files.found("sngan.gin") == "configs/sngan.gin"  # The user's before this project's.
  for name in ("sngan_digits.gin", "configs/sngan_digits.gin"):
    assert gin_files.found(name) == str(ROOT / "configs" / "sngan_digits.gin")
  assert gin_files.found("strategies/tpu.gin") == str(ROOT / "configs" / "strategies" / "tpu.gin")
  (project / "own.gin").touch()
  assert gin_files.found("own.gin") == "own.gin"
  assert gin_files.found("sngan_digit.gin") == "sngan_digit.gin"
  assert gin_files.named_like("sngan_digit.gin") == ". Did you mean 'configs/sngan_digits.gin'?"


def test_the_command_runs_what_python_runs(project):
  assert programs.program_of(["doctor", "--help"]) == ("replicator.doctor", ["--help"])
  assert programs.program_of(["run", "sngan", "-x"]) == ("experiments.sngan", ["-x"])
  assert programs.program_of(["run", "my_step.py"]) == ("my_step.py", [])
  assert programs.program_of(["run", "some.module"]) == ("some.module", [])
  python("-m", "replicator", "run", "own", cwd=project)
  (project / "experiments" / "__init__.py").touch()
  helped = python("-c", INSTALLED, "replicator", "run", "sngan", "--help", cwd=project).stdout
  assert "SNGAN: One training step" in helped


def test_the_command_lists_its_commands():
  printed = python("-m", "replicator").stdout
  assert all(f"\n  {command} " in printed for command in ("run", *programs.COMMANDS))


@pytest.mark.parametrize("words, line", [
    (["dctor"], "replicator dctor: no such command. Did you mean 'doctor'?"),
    (["run"], "replicator run: add the name of an experiment"),
    (["run", "--gin_file=a.gin"], "replicator run: add the name of an experiment"),
    (["run", "sgan"], "replicator run sgan: no such experiment. Did you mean 'sngan'?")])
def test_a_command_that_does_not_exist_is_one_line(words, line):
  with pytest.raises(UsageError) as refused:
    programs.program_of(words)
  assert str(refused.value).startswith(line)
