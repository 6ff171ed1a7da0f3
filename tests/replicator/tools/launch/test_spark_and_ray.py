"""Runs on a real Spark cluster and a real Ray cluster of two nodes, on this machine."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys

from replicator.app import config
from tests.programs import planted_bugs, spark_cluster
from tests.programs.logs import rows
from tests.programs.processes import ROOT, SECONDS, wait_until

import pytest

SETTINGS = ["train.steps = 400", "train.precision = 'float64'", "train.log_every = 20",
            "train.eval_every = 0", "train.checkpoint_every = 20", "train.global_batch_size = 8",
            "Regression.norm = 'global'"]


@pytest.fixture(scope="module")
def wanted(tmp_path_factory) -> list[dict]:
  """The log of the run in one process."""
  workdir = tmp_path_factory.mktemp("one")
  config.parse([], SETTINGS)
  planted_bugs.main(str(workdir))
  return rows(workdir)


@contextlib.contextmanager
def training(flag: str, workdir: pathlib.Path, lines: list[str]):
  """A launcher of two workers, once it has saved a checkpoint; its output at the end."""
  process = subprocess.Popen(
      [sys.executable, "-m", "replicator", "launch", flag, "--workers=2", "--max_restarts=1", "--",
       sys.executable, "-m", "tests.programs.planted_bugs", f"--workdir={workdir}",
       *(f"--gin_param={binding}" for binding in [
           *SETTINGS, "Replicator.strategy = 'multi_worker_mirrored'"])],
      cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
  try:
    wait_until(lambda: list(workdir.glob("checkpoints/step-*")) or process.poll() is not None)
    yield process
    output, _ = process.communicate(timeout=SECONDS)
    lines += output.splitlines()
    assert process.returncode == 0, output
  finally:
    process.kill()


def check(workdir: pathlib.Path, lines: list[str], wanted: list[dict]) -> None:
  """The run lost a worker, resumed, and logged the same as one process."""
  lost = [line for line in lines if line.startswith("launch: worker")]
  # Ray kills an agent or its command first.
  assert len(lost) == 1 and re.fullmatch(
      r"launch: worker \d (was lost: the connection to \S+ ended|ended with status 137); "
      "restart 1 of 1", lost[0])
  assert any("resumed at step" in line for line in lines)
  found = rows(workdir)
  assert [row["step"] for row in found] == [*range(20, 401, 20)]
  for row, expected in zip(found, wanted, strict=True):
    assert row == pytest.approx(expected, rel=1e-9)


def children(pid: int) -> list[int]:
  return [int(child) for file in pathlib.Path(f"/proc/{pid}/task").glob("*/children")
          for child in file.read_text().split()]


@pytest.mark.slow
def test_a_run_on_spark_goes_on_after_a_killed_executor_and_equals_one_process(wanted, tmp_path):
  if reason := spark_cluster.missing():
    pytest.skip(reason)
  lines: list[str] = []
  with training("--spark=local-cluster[2,1,1024]", tmp_path, lines) as launcher:
    (driver,) = children(launcher.pid)
    executor = next(pid for pid in children(driver) if "CoarseGrainedExecutorBackend"
                    in pathlib.Path(f"/proc/{pid}/cmdline").read_text())
    os.kill(executor, signal.SIGKILL)
  check(tmp_path, lines, wanted)


@pytest.mark.slow
def test_a_run_on_ray_goes_on_after_a_removed_node_and_equals_one_process(wanted, tmp_path):
  cluster_utils = pytest.importorskip("ray.cluster_utils")
  cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
  try:
    _, node = (cluster.add_node(num_cpus=1) for _ in range(2))
    lines: list[str] = []
    with training(f"--ray={cluster.address}", tmp_path, lines):
      cluster.remove_node(node, allow_graceful=False)
      cluster.add_node(num_cpus=1)
    check(tmp_path, lines, wanted)
  finally:
    cluster.shutdown()
