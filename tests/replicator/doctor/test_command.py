"""The command line of the doctor: what it prints, and its status."""

import itertools
import os
import pathlib
import pickle
import sys
import types

from replicator import UsageError
from replicator.doctor import __main__ as doctor
from replicator.doctor import replica_check, resume_check
from replicator.doctor.verdict import AGREES, DIFFERS, FAILED, SKIPPED, CheckResult
from tests.programs import planted_bugs
from tests.programs.processes import forked
from tests.replicator.doctor.checks import SMALL

import pytest
import tensorflow as tf


@pytest.mark.slow
def test_the_command_finds_a_sound_step_outside_the_repository_the_same_in_every_variant(tmp_path):
  source = pathlib.Path(planted_bugs.__file__).read_text()
  (tmp_path / "my_step.py").write_text(source)
  done = forked("-m", "replicator", "doctor", f"--experiment={tmp_path / 'my_step.py'}",
                "--steps=2", f"--gin_param={SMALL[0]}")
  title, _, *rows, conclusion = done.stdout.splitlines()
  assert "my_step.py: 2 steps of 8 examples in float64" in title
  assert [(row[2:20].strip(), row.split()[2]) for row in rows] == [
      ("2 replicas", AGREES), ("4 replicas", AGREES), ("2 micro-batches", AGREES),
      ("2 processes", AGREES)]
  assert all(float(row.split()[-6]) < 1e-13 for row in rows)
  assert conclusion == "This step trains the same however it is divided."
  assert done.stderr == ""


def test_a_process_of_a_cluster_records_and_prints_nothing(monkeypatch, capsys, tmp_path):
  monkeypatch.setattr(doctor, "load", lambda experiment: None)
  monkeypatch.setattr(replica_check.ReplicaCheck, "record_process", lambda check:
                      types.SimpleNamespace(check=check, is_chief=True))
  assert doctor.main(["--experiment=x", "--gin_file=f.gin", "--gin_param=a.b = 1", "--steps=3",
                      "--precision=float32", f"--record={tmp_path / 'recording'}"]) == 0
  assert pickle.loads((tmp_path / "recording").read_bytes()).check == replica_check.ReplicaCheck(
      None, ["f.gin"], ["a.b = 1", "train.precision = 'float32'"], 3, "float32")
  assert capsys.readouterr().out == ""


@pytest.mark.parametrize("fails, has_hint", [
    (lambda: tf.constant(1.0) + tf.constant(1.0, tf.float64), True),
    (lambda: tf.constant(1.0) + tf.constant(1), False)])
def test_a_step_that_has_only_run_in_float32_gets_a_hint(fails, has_hint, monkeypatch, capsys):
  monkeypatch.setattr(doctor, "load", lambda experiment: lambda workdir: fails())
  assert doctor.main(["--experiment=x"]) == 1
  error, = capsys.readouterr().err.splitlines()
  assert error.endswith("use keras.config.floatx() instead of tf.float32 (the proof is in "
                        "float64; --precision=float32 compares loosely)") == has_hint


@pytest.mark.parametrize("flags, title, good, bad", [
    ([], "x: 5 steps of 8 examples in float64, against 1 replica",
     "trains the same however it is divided", "does not train or log the same when it is divided"),
    (["--check_resume"], "x: 6 steps, against the same run stopped after step 3 and resumed in a",
     "resumes exactly", "does not resume exactly")])
def test_the_status_says_whether_a_step_passes(flags, title, good, bad, monkeypatch, capsys):
  monkeypatch.setattr(doctor, "load", lambda experiment: None)
  monkeypatch.setattr(replica_check.ReplicaCheck, "prepare", lambda check: setattr(
      check, "reference", types.SimpleNamespace(evidence=types.SimpleNamespace(batch_size=8))))
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
  for status, verdict, words in [(0, AGREES, good), (1, DIFFERS, bad), (1, FAILED, bad)]:
    rows = [CheckResult("row", AGREES, ""), CheckResult("row", verdict, "")]
    for check in (replica_check.ReplicaCheck, resume_check.ResumeCheck):
      monkeypatch.setattr(check, "results", lambda *_, rows=rows: iter(rows))
    assert doctor.main(["--experiment=x", *flags]) == status
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith(title) and last.startswith(f"This step {words}")
  # The replicas are CPUs, which every machine has; a run resumes where it trains.
  assert os.environ["CUDA_VISIBLE_DEVICES"] == ("0" if flags else "-1")


def test_what_was_not_compared_is_not_said_to_be_the_same(monkeypatch, capsys):
  monkeypatch.setattr(doctor, "load", lambda experiment: None)
  monkeypatch.setattr(replica_check.ReplicaCheck, "prepare", lambda check: setattr(
      check, "reference", types.SimpleNamespace(evidence=types.SimpleNamespace(batch_size=8))))
  rows = [CheckResult("row", AGREES, ""), CheckResult("row", SKIPPED, "")]
  monkeypatch.setattr(replica_check.ReplicaCheck, "results", lambda *_: iter(rows))
  assert doctor.main(["--experiment=x"]) == 0
  *_, last = capsys.readouterr().out.splitlines()
  assert last == "This step trains the same in every variant that was compared."


def test_the_status_is_1_where_nothing_could_be_compared(monkeypatch, capsys):
  every_row = replica_check.ReplicaCheck.results
  monkeypatch.setattr(doctor, "load", lambda experiment: planted_bugs.main)
  monkeypatch.setattr(replica_check.ReplicaCheck, "results", lambda check, words: itertools.islice(
      every_row(check, words), 1))  # So without two other processes.
  words = ["--experiment=x", "--steps=1", "--gin_param=train.global_batch_size = 7"]
  assert doctor.main(words) == 1
  printed = capsys.readouterr().out
  assert "7: does not divide evenly among the 2 replicas" in printed
  assert printed.endswith("Nothing could be compared.\n")
  assert doctor.main([*words, "--gin_param=Regression.bugs = 1"]) == 2
  assert "Did you mean 'bug'?" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "message"), [
    (["--experiment=experiments.no_such"], "no such module"),
    (["--experiment=~/my_step.py"], "--experiment={home}/my_step.py: no such file"),
    (["--steps=0"], "--steps=0: must be at least 1"),
    (["--check_resume", "--steps=1"], "--steps=1: must be at least 2"),
    (["--scaling", "--bandwidth=nan", "--latency=1"], "--bandwidth: nan is not above 0"),
    (["--scaling", "--bandwidth=1e9"], "--bandwidth and --latency: give both"),
    (["--scaling", "--check_resume"], "not allowed with"),
    (["--strong"], "--strong: works only with --scaling"),
])
def test_a_bad_command_line_is_status_2_and_one_line(words, message, capsys, tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path))
  assert doctor.main(["--experiment=x", *words]) == 2
  output = capsys.readouterr()
  assert output.out == "" and output.err.count("\n") == 1
  assert message.format(home=tmp_path) in output.err


def test_a_program_hands_over_what_it_would_run(tmp_path, monkeypatch):
  monkeypatch.setattr(sys, "path", list(sys.path))
  monkeypatch.setattr(sys, "argv", ["doctor", "--steps=3"])
  (tmp_path / "beside.py").write_text("VALUE = 3\n")
  program = tmp_path / "program.py"
  program.write_text("import sys\nimport beside\nfrom replicator import app\nwords = sys.argv\n"
                     "if __name__ == '__main__':\n  app.run(lambda workdir: (beside.VALUE, words))")
  assert doctor.load(str(program))("") == (3, [str(program)])
  assert sys.argv == ["doctor", "--steps=3"]
  program.write_text("from replicator import app")
  with pytest.raises(UsageError, match=r"does not call replicator\.app\.run"):
    doctor.load(str(program))
