"""How an experiment ends: its status, the line and the traceback of a failure, how to resume."""

import json
import pathlib
import re
import shlex
import sys

import numpy as np
import pytest

from replicator import UsageError
from replicator.errors import Preempted
from tests.replicator.app.command_line import PROGRAM, fails_with, flags, line_of, nothing


def test_a_failing_step_names_the_line_and_keeps_the_traceback(run, tmp_path):
  status, _, err = run([*flags("TwoNetworks.fault = 'run'"), "--workdir=w"])
  assert status == 1
  assert err.startswith("error: ") and err.count("\n") == 1
  assert f"{PROGRAM.name}:{line_of('return tf.debugging.check_numerics', PROGRAM)}: " in err
  assert "of the user" in err
  assert err.endswith("; the traceback is in w/traceback.txt\n")
  kept = (tmp_path / "w" / "traceback.txt").read_text()
  assert kept.startswith("Traceback") and "of the user" in kept


@pytest.mark.parametrize("call, name", [
  (lambda: json.loads("{"), "JSONDecodeError"),  # Raises in a file of the standard library,
  (lambda: np.random.default_rng(-1), "ValueError")])  # and in one that is not there: compiled.
def test_a_failure_inside_a_library_names_the_users_line(call, name, run):
  def main(workdir):
    call()
  status, _, err = run(["--workdir=w"], main)
  assert status == 1
  lines = [line_of(f"lambda: {start}", pathlib.Path(__file__)) for start in ("json", "np.random")]
  assert re.search(f"{pathlib.Path(__file__).name}:({lines[0]}|{lines[1]}): {name}: ", err)
  assert "--debug" in err  # There is no workdir yet to keep a traceback in.


def test_a_traceback_that_cannot_be_written_hides_no_failure(run, tmp_path):
  (tmp_path / "w" / "traceback.txt").mkdir(parents=True)
  status, _, err = run(["--workdir=w"], fails_with(ZeroDivisionError()))
  assert status == 1 and err.endswith("ZeroDivisionError (--debug shows the traceback)\n")


def test_each_ending_has_its_status(run):
  assert run(["--workdir=w"], nothing) == (0, "", "")
  assert run(["--workdir=w"], fails_with(UsageError("x = 1: write 2"))) == (
      2, "", "error: x = 1: write 2\n")
  assert run(["--workdir=w"], fails_with(KeyboardInterrupt())) == (
      130, "", "error: interrupted\n")
  status, out, err = run(["--workdir=w"], fails_with(Preempted(7)))
  assert (status, err) == (42, "")
  assert out.startswith("stopped at step 7, which is saved; to resume: python ")
  assert out.endswith(" --workdir=w\n")
  status, _, err = run(["--workdir=w", "--debug"], fails_with(ArithmeticError("of the user")))
  assert (status, err[:9]) == (1, "Traceback")
  assert err.splitlines()[-1].endswith("ArithmeticError: of the user")


def test_the_command_to_resume_is_the_one_that_was_typed(run, monkeypatch):
  monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
  monkeypatch.setattr(sys, "argv", ["my experiments/sngan.py"])
  argv = ["--gin_param=TwoNetworks.fault = 'b c'", "--workdir", "w"]
  _, out, _ = run(argv, fails_with(Preempted(7)))
  assert shlex.split(out.partition("to resume: ")[2]) == [
      "python", "my experiments/sngan.py", *argv]


def test_the_command_to_resume_names_a_new_workdir(run):
  argv = ["--gin_param=train.precision = 'float64'"]
  _, out, _ = run(argv, fails_with(Preempted(7)))
  *_, binding, workdir = shlex.split(out.partition("to resume: ")[2])
  assert binding == argv[0]
  assert re.fullmatch(r"--workdir=runs/.*-\d{8}-\d{6}", workdir)
