"""The command line of a sweep."""

import csv

from replicator.tools.sweeps import __main__ as command
from replicator.tools.sweeps import results, trials

import pytest


def test_a_name_that_the_experiment_rejects_is_reported_before_any_trial_runs(sweep):
  sweep.write(grid={"lrr": [1]})
  for flags in (["--explain"], []):
    assert sweep.run(*flags) == 2
    assert sweep.err.startswith("error: ") and sweep.err.count("\n") == 1
    assert "rejects a trial: --gin_param: nothing configurable is called 'lrr'" in sweep.err
    assert sweep.folder.exists() == (not flags) and not sweep.logs()


@pytest.mark.parametrize("flags, message", [
  (["--jobs=0"], "--jobs=0: must be at least 1"),
  (["--workdir={file}"], "cannot be written (File exists); choose another folder"),
])
def test_a_bad_command_line_is_reported_in_one_line(flags, message, sweep):
  assert sweep.run(*(flag.format(file=sweep.file) for flag in flags)) == 2
  assert message in sweep.err and sweep.err.count("\n") == 1


def test_trials_of_gin_files_that_have_changed_are_shown_apart(sweep, tmp_path):
  gin = tmp_path / "base.gin"
  gin.write_text("train.batch_size = 8\n")
  sweep.write(gin_files=[str(gin)], seeds=[1])
  assert sweep.run() == 0 and "shown separately" not in sweep.out + sweep.err
  earlier = set(sweep.logs())
  gin.write_text("train.batch_size = 64\n")
  sweep.write(gin_files=[str(gin)], seeds=[1], grid={"lr": [0.1, 0.2, 0.3]})
  assert sweep.run("--explain") == 0 and sweep.out.count(": to run\n") == 3
  assert sweep.run() == 0
  (line,) = [line for line in (sweep.out + sweep.err).splitlines() if "shown separately" in line]
  assert all(name in line for name in earlier)
  with (sweep.folder / results.CSV).open() as file:
    found = [(row["id"] in earlier, row["in_sweep_file"]) for row in csv.DictReader(file)]
  assert found == [(False, "yes")] * 3 + [(True, "no")] * 2
  assert list(sweep.logs().values()) == [[0]] * 5


def test_explain_prints_each_trial_with_its_command_and_runs_none(sweep):
  assert sweep.run("--explain") == 0
  assert "4 trials" in sweep.out and sweep.out.count(": to run\n") == 4
  assert "; the best has the lowest eval/loss\n" in sweep.out and "\n4. lr=0.3_seed=2" in sweep.out
  assert not sweep.folder.exists()
  explained = sweep.out
  assert sweep.write(seeds=[1]).run() == 0
  for path in sweep.folder.glob("trials/*"):
    record = trials.read_record(path)
    assert f". {record.id}: to run\n" in explained
    assert f"   {record.command}\n" in explained


def test_the_home_directory_may_be_written_as_a_tilde(sweep, tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path))
  assert sweep.run("--explain", "--sweep_file=~/tiny.gin", "--workdir=~/elsewhere") == 0
  assert "~" not in sweep.out and f"{tmp_path}/elsewhere/trials/" in sweep.out


def test_a_sweep_has_a_folder_of_the_name_of_its_file(sweep, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  assert command.main([f"--sweep_file={sweep.file}", "--explain"]) == 0
  assert capsys.readouterr().out.startswith("runs/tiny: 4 trials of ")


def test_explain_shows_the_space_of_a_search(sweep):
  sweep.write(grid=None, seeds=None, trials=20, optuna={"lr": ("log_uniform", 0.01, 1.0)},
              goal="max")
  assert sweep.run("--explain") == 0
  assert "20 trials of " in sweep.out and "; the best has the highest eval/loss\n" in sweep.out
  assert "20 trials to be proposed by Optuna" in sweep.out
  assert "--gin_param=lr = 0." in sweep.out
