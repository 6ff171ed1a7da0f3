"""Parts of the tables of mistakes: a newcomer's folder, and a command line in one process."""

import re
import shutil
import sys

from replicator import app
from tests.programs.processes import ROOT

import pytest

DIGITS = "--gin_file=configs/sngan_digits.gin"
USAGE, FAILED = 2, 1  # Exit statuses.


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A working directory with the configs, and a file."""
  folder = tmp_path_factory.mktemp("newcomer")
  shutil.copytree(ROOT / "configs", folder / "configs")
  (folder / "a_file").write_text("")
  return folder


@pytest.fixture
def run(folder, monkeypatch, capfd):
  """A function that runs a program with words of a command line; returns status and stderr."""
  monkeypatch.chdir(folder)
  monkeypatch.setattr("sys.argv", ["sngan.py"])
  monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)  # The file's name counts.
  monkeypatch.setenv("HOME", str(folder))

  def run(main, words: list[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
      app.run(main, words)
    return end.value.code, capfd.readouterr().err

  return run


def assert_line(found: tuple[int, str], status: int, line: str) -> None:
  """The error is exactly one line; `...` stands for any words."""
  code, err = found
  assert err.startswith("error: ") and err.count("\n") == 1, err
  pattern = ".+".join(map(re.escape, line.split("...")))
  assert re.fullmatch(f"error: {pattern}\n", err), f"{err}\n{line}"
  assert code == status
