"""A run can be repeated from the files of its workdir alone."""

import json
import os
import pathlib
import sys

from replicator.errors import UsageError
from replicator.tools import rerun
from replicator.training.workdir import provenance
from tests.programs.logs import rows
from tests.programs.processes import forked

import pytest

CLUSTER = {"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]},
           "task": {"type": "worker", "index": 0}}


@pytest.fixture
def run(tmp_path) -> pathlib.Path:
  """The workdir of a run of `program.py`."""
  folder = tmp_path / "run"
  folder.mkdir()
  (tmp_path / "program.py").write_text("")
  (folder / "config.gin").write_text("train.steps = 3\n")
  write_facts(folder)
  return folder


def write_facts(folder, **facts) -> dict:
  content = {"program": ["program.py"], "program_file": str(folder.parent / "program.py"),
             "argv": ["--gin_file", "gone.gin", "--gin_param=a.b = 1", "--eager", "--workdir=old",
                      "--from_step=4"],
             "working_directory": str(folder.parent), "tf_config": None,
             "environment": {"XLA_FLAGS": "--then"}, "git_commit": "c0ffee", "git_diff": None,
             "versions": {"numpy": "1.0"}, "machine": {"cores": 2, "accelerators": []}, **facts}
  (folder / "run.json").write_text(json.dumps(content))
  return content


def command(run, workdir="/new", **variables) -> tuple[list[str], dict[str, str]]:
  """The words and the variables as a process with only these `variables` makes them."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(os, "environ", variables)
    facts = rerun.read_facts(run)
    return (rerun.make_command(run, facts, pathlib.Path(workdir)), rerun.make_environment(facts))


# ---- The command --------------------------------------------------------------------------------


def test_the_configuration_of_the_workdir_replaces_files_and_parameters(run):
  write_facts(run, environment={"XLA_FLAGS": "--then", "LD_PRELOAD": "evil.so", "PATH": "/evil"})
  words, variables = command(run, XLA_FLAGS="--now", TF_ENABLE_ONEDNN_OPTS="0", HOME="/home",
                             TF_CONFIG="{}")
  assert words == [sys.executable, "program.py", f"--gin_file={run}/config.gin", "--eager",
                   "--workdir=/new"]
  assert variables == {"HOME": "/home", "XLA_FLAGS": "--then"}  # As it was then.


@pytest.mark.parametrize(("cluster", "sizes"), [
  (CLUSTER["cluster"], ["--workers=2"]),
  ({"chief": ["a:1"], "worker": ["a:2"], "evaluator": ["a:3"]}, ["--workers=2"]),
  ({"chief": ["a:1"], "worker": ["a:2", "a:3"], "ps": ["a:4"]}, ["--workers=2", "--ps=1"])])
def test_several_processes_are_launched_again(cluster, sizes, run):
  write_facts(run, tf_config={**CLUSTER, "cluster": cluster})
  words, _ = command(run)
  assert words[:-5] == [sys.executable, "-m", "replicator", "launch", *sizes, "--"]
  assert words[-5:] == [sys.executable, "program.py", f"--gin_file={run}/config.gin", "--eager",
                        "--workdir=/new"]
  own, variables = command(run, TF_CONFIG="{}")  # A cluster manager starts the processes itself.
  assert own == words[-5:] and variables["TF_CONFIG"] == "{}"


def test_the_same_command_resumes_the_new_run(run, tmp_path):
  first = command(run, tmp_path / "new")
  (tmp_path / "new").mkdir()
  (tmp_path / "new" / "run.json").write_text(json.dumps({"argv": first[0][2:]}))
  assert command(run, tmp_path / "new") == first


# ---- What differs -------------------------------------------------------------------------------


def differences(run, commit="c0ffee", diff=b"", versions=None, machine=None, **facts) -> list[str]:
  then = write_facts(run, **facts)
  return rerun.differences(then, {
      "git_commit": commit, "diff": diff, "versions": versions or then["versions"],
      "machine": machine or then["machine"]}, run)


def test_nothing_differs_if_everything_is_as_it_was(run):
  assert differences(run) == []
  (run / "changes.diff").write_bytes(b"patch")
  assert differences(run, "c0ffee+", b"patch", git_commit="c0ffee+", git_diff="changes.diff") == []
  assert differences(run, tf_config=CLUSTER, resumed=[{"step": 1, "before": {}}]) == []


def test_the_changes_of_the_code_can_be_restored(run):
  (run / "changes.diff").write_bytes(b"patch")
  then = {"git_commit": "0123456789abcdef+", "git_diff": "changes.diff"}
  restore = f"`git checkout 0123456789abcdef && git apply {run}/changes.diff` restores it"
  for now, text in (("0123456789abcdef", "0123456789abcdef now"), ("dead", "dead now"),
                    ("0123456789abcdef+", "0123456789abcdef+ now, with different changes")):
    assert differences(run, now, **then) == [
        f"code: commit 0123456789abcdef+ then, {text}; {restore}"]


@pytest.mark.parametrize(("now", "then", "line"), [
  ({"commit": "dead"}, {}, "code: commit c0ffee then, dead now; `git checkout c0ffee` restores"),
  ({"commit": None}, {}, "code: commit c0ffee then, none now"),
  ({"commit": "c0ffee+", "diff": b"x"}, {}, "code: commit c0ffee then, c0ffee+ now"),
  ({}, {"git_commit": "c0ffee+", "git_diff": "5 bytes, too many"}, "with unsaved changes"),
  ({}, {"git_commit": None}, "code: the run recorded no commit"),
  ({}, {"tf_config": {"cluster": {"worker": ["a:1", "b:1"]}}}, "processes: ran on the hosts a, b"),
  ({}, {"environment": {"TF_X": "1", "LD_PRELOAD": "evil.so", "PATH": "/evil"}},
   "environment: LD_PRELOAD, PATH of run.json is ignored"),
  ({}, {"resumed": [{"step": 10, "before": {"num_replicas": 2}}]},
   "the run itself: resumed at step 10 with changes to num replicas"),
])
def test_a_difference_is_one_line(now, then, line, run):
  (found,) = differences(run, **now, **then)
  assert line in found


def test_versions_and_the_machine_are_compared_one_by_one(run):
  assert differences(run, versions={"numpy": "2.0", "keras": "3.0"}, machine={
      "host": "b", "accelerators": ["H200", "T4"], "cores": 8, "processor": "B"}) == [
          "accelerators: [] then, ['H200', 'T4'] now", "cores: 2 then, 8 now",
          "processor: unknown then, B now", "version of keras: unknown then, 3.0 now",
          "version of numpy: 1.0 then, 2.0 now"]  # The host is no difference.


# ---- Whose command it is ------------------------------------------------------------------------


@pytest.fixture
def executed(run, monkeypatch) -> list[tuple]:
  """The command that replaced this process; everything is as it was then."""
  calls: list[tuple] = []
  monkeypatch.setattr(rerun, "now", lambda facts: {**facts, "diff": b""})
  monkeypatch.setattr(os, "execve", lambda *words: calls.append(words))
  monkeypatch.chdir(run.parent)
  monkeypatch.delenv("TF_CONFIG", raising=False)
  return calls


@pytest.mark.parametrize(("answer", "starts"), [("Yes ", True), ("y", True), ("", False),
                                                (EOFError, False)])
def test_the_command_is_shown_and_starts_if_the_answer_is_yes(answer, starts, run, executed,
                                                              monkeypatch, capsys):
  questions = []
  monkeypatch.setattr(sys.stdin, "isatty", lambda: True)

  def ask(words: str) -> str:
    questions.append(words)
    if answer is EOFError:
      raise EOFError
    return answer

  monkeypatch.setattr("builtins.input", ask)
  status = rerun.main([str(run)])
  output = capsys.readouterr()
  assert questions == ["Start this command? [y/N] "]
  assert (f"running again in {run}-rerun: cd {run.parent} && XLA_FLAGS=--then {sys.executable} "
          f"program.py --gin_file={run}/config.gin --eager --workdir={run}-rerun") in output.out
  assert len(executed) == starts
  if not starts:
    assert (status, output.err) == (1, "error: not started, because the answer was not yes\n")


def test_exact_does_not_start_what_differs(run, executed, monkeypatch, capsys):
  monkeypatch.setattr(rerun, "now", lambda facts: {**facts, "git_commit": "dead", "diff": b""})
  assert rerun.main([str(run), "--exact", "--yes"]) == 1
  assert not executed
  assert capsys.readouterr().err == (
      "error: --exact: not started, because the numbers may differ\n")


@pytest.mark.parametrize(("commit", "words", "said"), [
  ("c0ffee", ["--exact"], "everything that the run recorded is unchanged\n"),
  ("dead", [], "differs now: code: commit c0ffee then, dead now; ")])
def test_a_run_starts_in_its_folder_if_nothing_differs_or_may_differ(
    commit, words, said, run, executed, monkeypatch, capsys, tmp_path):
  monkeypatch.setattr(rerun, "now", lambda facts: {**facts, "git_commit": commit, "diff": b""})
  (tmp_path / "elsewhere").mkdir()
  monkeypatch.chdir(tmp_path / "elsewhere")
  monkeypatch.setenv("HOME", str(tmp_path))
  rerun.main(["~/run", "--workdir=~/again", "--yes", *words])
  assert capsys.readouterr().out.startswith(said)
  (_, command_words, _), = executed
  assert command_words[-1] == f"--workdir={tmp_path}/again" and os.getcwd() == str(run.parent)


def test_without_a_terminal_nothing_starts_unseen(run, executed, monkeypatch, capsys):
  monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
  assert rerun.main([str(run)]) == 2
  output = capsys.readouterr()
  assert output.out == "" and output.err.count("\n") == 1 and not executed
  assert f"{run}/run.json: its command was not started: cd " in output.err
  assert "add --yes" in output.err
  rerun.main([str(run), "--yes"])
  assert len(executed) == 1


def test_no_part_of_the_command_is_hidden(run, executed, monkeypatch, capsys):
  write_facts(run, argv=["--flag=\x1b[2K\rharmless"])
  rerun.main([str(run), "--yes"])
  assert "'--flag=\\x1b[2K\\rharmless'" in capsys.readouterr().out


# ---- Bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("spoil", "message"), [
  (lambda run: (run / "run.json").unlink(), "run.json: missing; give the workdir of a run"),
  (lambda run: (run / "run.json").write_text('{"program": ["p'), "run.json: has no 'program', be"),
  (lambda run: (run / "run.json").write_text('{"command": "x"}'), "run.json: has no 'program'"),
  (lambda run: (run / "config.gin").unlink(), "config.gin: missing; it is written after the first"),
  (lambda run: (run.parent / "program.py").unlink(), "program.py is missing; restore it"),
  (lambda run: write_facts(run, program_file=None), "trained in a notebook, so it has no command"),
  (lambda run: write_facts(run, working_directory="/gone"), "folder /gone is missing; restore it"),
])
def test_a_file_that_is_missing_or_corrupt_is_an_error_of_one_line(spoil, message, run, capsys):
  spoil(run)
  assert rerun.main([str(run), "--yes"]) == 2
  output = capsys.readouterr()
  assert output.out == "" and output.err.count("\n") == 1 and message in output.err


def test_another_run_is_not_overwritten(run, tmp_path):
  with pytest.raises(UsageError, match="is the folder of the run itself"):
    command(run, run)
  (tmp_path / "other").mkdir()
  (tmp_path / "other" / "run.json").write_text('{"argv": ["--gin_file=x"]}')
  with pytest.raises(UsageError, match="contains another run"):
    command(run, tmp_path / "other")


# ---- For real -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_repeated_run_of_two_processes_has_the_same_numbers(tmp_path):
  (tmp_path / "my_step.py").write_text(
      "from replicator import app\nfrom tests.programs import planted_bugs\n"
      "app.run(planted_bugs.main)\n")
  (tmp_path / "base.gin").write_text(
      "train.steps = 4\ntrain.log_every = 1\ntrain.global_batch_size = 8\n"
      "Regression.norm = 'global'\n")
  forked("-m", "replicator", "launch", "--workers=2", "--", sys.executable, "my_step.py",
         "--gin_file=base.gin", "--gin_param=Replicator.strategy = 'multi_worker_mirrored'",
         "--gin_param=train.seed = 7", "--workdir=run", cwd=tmp_path)
  (tmp_path / "base.gin").write_text("train.steps = 99\n")  # Since then.
  done = forked("-m", "replicator", "rerun", "run", "--workdir=again", "--yes", cwd=tmp_path)
  assert "running again in" in done.stdout
  assert rows(tmp_path / "again") == rows(tmp_path / "run")
  assert len(rows(tmp_path / "again")) == 4
  facts = json.loads((tmp_path / "again" / "run.json").read_text())
  assert (facts["seed"], facts["num_workers"]) == (7, 2)


def test_only_variables_that_may_change_numbers_are_kept():
  kept = provenance.environment({
      "XLA_FLAGS": "a", "TF_ENABLE_ONEDNN_OPTS": "0", "OMP_NUM_THREADS": "2", "PYTHONPATH": "/p",
      "TF_CONFIG": "{}", "TF_CPP_MIN_LOG_LEVEL": "2", "TF_VAR_password": "secret",
      "TF_TOKEN_host": "secret", "HOME": "/h", "AWS_SECRET": "secret", "TF_CLI_ARGS": "secret",
      "CUDA_HOME": "/c", "CUDA_PATH": "/c", "TPU_ML_PLATFORM": "x", "CUDA_VISIBLE_DEVICES": "0",
      "KERAS_BACKEND": "tensorflow", "MKL_NUM_THREADS": "2", "NVIDIA_TF32_OVERRIDE": "0",
      "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1", "TPU_NAME": "x"})
  assert list(kept) == [
      "CUDA_VISIBLE_DEVICES", "KERAS_BACKEND", "MKL_NUM_THREADS", "NVIDIA_TF32_OVERRIDE",
      "OMP_NUM_THREADS", "PYTHONHASHSEED", "PYTHONPATH", "TF_ENABLE_ONEDNN_OPTS", "TPU_NAME",
      "XLA_FLAGS"]
