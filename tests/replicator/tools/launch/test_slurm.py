"""Runs on a real Slurm cluster of two nodes: what `--slurm` writes, and what preemption does."""

import pathlib
import subprocess

from replicator.tools import launch
from tests.programs import slurm_cluster
from tests.programs.logs import rows
from tests.programs.processes import ROOT, launched, wait_until
from tests.programs.slurm_cluster import await_end, said

import pytest

SETTINGS = [
    "train.global_batch_size = 2", "train.log_every = 50", "train.eval_every = 0",
    "train.checkpoint_every = 200", "Guard.action = 'off'", "Guard.signals = False",
    "Replicator.strategy = 'multi_worker_mirrored'"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
  if reason := slurm_cluster.missing():
    pytest.skip(reason)
  with slurm_cluster.running(tmp_path_factory.mktemp("slurm"), launch.free_ports(1)[0]):
    yield


def submitted(folder: pathlib.Path, *options: str, steps: int) -> tuple[str, pathlib.Path]:
  """Writes and submits the script of a run in `folder`; returns its job and its log."""
  launched(["--workers=2", f"--slurm={folder}/job.sh", f"--option=--output={folder}/log", *options],
           "tests.programs.fragile", f"--workdir={folder}/run",
           bindings=[*SETTINGS, f"train.steps = {steps}"])
  done = subprocess.run(["sbatch", "--parsable", folder / "job.sh"], cwd=ROOT, check=True,
                        capture_output=True, text=True)
  return done.stdout.strip(), folder / "log"


@pytest.mark.slow
def test_a_preempted_job_is_queued_again_and_equals_the_unbroken_run_bit_for_bit(cluster, tmp_path):
  job, log = submitted(tmp_path, "--option=--partition=low", steps=1000)
  wait_until(lambda: (tmp_path / "run" / "metrics.jsonl").exists())
  subprocess.run(["sbatch", "--partition=high", "--nodes=2", "--output=/dev/null",
                  "--wrap=srun sleep 1"], check=True, capture_output=True)
  await_end(job)
  text = log.read_text()
  assert "0: cluster     worker replica1:" in text and f"(from Slurm step {job}.0)" in text
  assert "DUE TO PREEMPTION" in text and "0: resumed at step" in text and "0: done: " in text
  launched(["--workers=2"], "tests.programs.fragile", f"--workdir={tmp_path}/unbroken",
           bindings=[*SETTINGS, "train.steps = 1000"])
  assert rows(tmp_path / "run") == rows(tmp_path / "unbroken")


@pytest.mark.slow
def test_a_canceled_job_saves_and_is_not_queued_again(cluster, tmp_path):
  job, log = submitted(tmp_path, steps=10 ** 7)
  wait_until(lambda: (tmp_path / "run" / "metrics.jsonl").exists())
  said("scancel", job)
  await_end(job)
  assert "0: stopped at step" in log.read_text()


@pytest.mark.slow
def test_all_processes_are_started_again_when_one_is_lost(cluster, tmp_path):
  job, log = submitted(tmp_path, "--max_restarts=1", steps=1000)
  wait_until(lambda: (tmp_path / "run" / "metrics.jsonl").exists()
             and rows(tmp_path / "run")[-1]["step"] > 200)
  said("scancel", "--signal=KILL", f"{job}.0")
  await_end(job)
  text = log.read_text()
  for line in ("ended with status 137; restarts left: 1", "0: resumed at step", "0: done: "):
    assert line in text
