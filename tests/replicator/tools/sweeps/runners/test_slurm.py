"""A sweep as a Slurm array, under a stand-in for Slurm."""

import os
import pathlib
import shutil
import signal
import subprocess

from replicator.tools.sweeps.runners import slurm

import pytest

HERE = pathlib.Path(__file__).parent


@pytest.fixture
def cluster(tmp_path, monkeypatch):
  """A folder of programs that comes first on PATH, with `sbatch` in it."""
  folder = tmp_path / "bin"
  folder.mkdir()
  shutil.copy(HERE / "fake_sbatch.py", folder / "sbatch")
  (folder / "sbatch").chmod(0o755)
  program(folder, "squeue", "echo 4711_1")
  monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
  return folder


def program(folder, name, text):
  (folder / name).write_text(f"#!/bin/sh\n{text}\n")
  (folder / name).chmod(0o755)


def test_each_missing_trial_is_an_index_of_the_array(sweep, cluster):
  assert sweep.write(seeds=[1]).run() == 0
  sweep.write(slurm=["--partition=gpu", "--time=1:00:00"], gpus_per_trial=2)
  assert sweep.run("--runner=slurm") == 0 and "4 of 4 done" in sweep.out
  assert list(sweep.logs().values()) == [[0]] * 4
  script = (sweep.folder / "slurm.sh").read_text()
  assert "#SBATCH --array=0-1%2\n" in script
  assert "#SBATCH --gpus=2\n#SBATCH --partition=gpu\n#SBATCH --time=1:00:00\n" in script
  assert "#SBATCH --job-name=sweep\n" in script
  assert f"#SBATCH --output={sweep.folder}/slurm-%A_%a.out\n" in script
  assert "#SBATCH --signal=B:TERM@120\n" in script  # A trial has two minutes to save.
  subprocess.run(["bash", sweep.folder / "slurm.sh"], check=True,
                 env={**os.environ, "SLURM_ARRAY_TASK_ID": "0"})
  assert list(sweep.logs().values()) == [[0]] * 4  # It is done already.
  assert sweep.run("--runner=slurm") == 2
  assert "job 4711 of this sweep is still in the queue" in sweep.err


def test_a_stopped_sweep_stops_the_array(sweep, cluster):
  program(cluster, "scancel", f'echo "$@" >> {cluster}/cancelled')
  sweep.write_held()
  assert sweep.run_stopped(sweep.is_held, signal.SIGTERM, "--runner=slurm") == 42
  assert "0 of 4 done, 4 stopped" in sweep.out
  assert (cluster / "cancelled").read_text() == "--state=PENDING 4711\n"
  # An index that starts nevertheless ends immediately.
  subprocess.run(["bash", sweep.folder / "slurm.sh"], check=True,
                 env={**os.environ, "SLURM_ARRAY_TASK_ID": "3"})
  assert len(sweep.logs()) == 2


def test_trials_that_slurm_has_lost_fail(sweep, cluster, monkeypatch):
  monkeypatch.setattr(slurm, "_QUEUE_SECONDS", 0.2)
  program(cluster, "sbatch", "echo 7")
  program(cluster, "squeue", "exit 0")
  assert sweep.write(seeds=[1]).run("--runner=slurm") == 1
  assert "job 7 left Slurm's queue before it finished" in sweep.out


@pytest.mark.parametrize("text, is_there", [
    ("echo 7_1", True), ("exit 0", False), ("echo 'Invalid job id specified' >&2; exit 1", False),
    ("echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1", True)])
def test_a_queue_that_cannot_be_read_has_lost_no_job(text, is_there, cluster):
  program(cluster, "squeue", text)
  assert slurm._is_in_queue("7") == is_there


@pytest.mark.parametrize("text, settings, message", [
  ("echo 'Invalid partition' >&2; exit 1", {}, "sbatch rejects"),
  ("", {"grid": None, "seeds": None, "trials": 3, "optuna": {"lr": ("uniform", 0, 1)}},
   "sweep.optuna with --runner=slurm: the trials of an array must be known before"),
  ("", {"grid": None, "seeds": None, "trials": 2, "interval": 3, "params": ["train.steps = 3"],
        "population": {"lr": ("uniform", 0, 1)}}, "sweep.population with --runner=slurm: "),
])
def test_what_cannot_be_submitted_is_reported(text, settings, message, sweep, cluster):
  program(cluster, "sbatch", text)
  assert sweep.write(**settings).run("--runner=slurm") == 2
  assert message in sweep.err and sweep.err.count("\n") == 1


def test_without_slurm_it_says_so(sweep, tmp_path, monkeypatch):
  monkeypatch.setenv("PATH", str(tmp_path))  # This machine may have it.
  assert sweep.run("--runner=slurm") == 2
  assert "there is no sbatch here" in sweep.err
