"""Synchronous workers in processes of their own, as a cluster manager describes them."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys

import pytest

from replicator import launch, train
from replicator.app import config
from tests.programs import fragile
from tests.programs.forks import in_a_fork
from tests.programs.logs import rows
from tests.programs.processes import ROOT

SETTINGS = ["train.steps = 4", "train.global_batch_size = 4", "train.log_every = 1",
            "train.eval_every = 0", "train.checkpoint_every = 4"]


def start(workdir: pathlib.Path, cluster: dict, kind: str) -> subprocess.Popen:
  tf_config = json.dumps({"cluster": cluster, "task": {"type": kind, "index": 0}})
  return subprocess.Popen(
      [sys.executable, "-m", "tests.programs.fragile", f"--workdir={workdir}",
       *(f"--gin_param={binding}" for binding in
         [*SETTINGS, "Replicator.strategy = 'multi_worker_mirrored'"])],
      cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
      env={**os.environ, "TF_CONFIG": tf_config, "no_grpc_proxy": "127.0.0.1"})


@pytest.mark.slow
@in_a_fork
def test_a_chief_and_a_worker_train_as_one_process_does(tmp_path):
  addresses = launch.tf_configs(workers=3)[0]["cluster"]["worker"]
  cluster = {kind: [address] for kind, address in
             zip(("chief", "worker", "evaluator"), addresses, strict=True)}
  # No process takes the place of the evaluator, and the others do not wait for one.
  with contextlib.ExitStack() as stack:
    processes = [stack.enter_context(start(tmp_path / "two", cluster, kind))
                 for kind in ("worker", "chief")]
    for process in processes:
      stack.callback(process.kill)
    for process in processes:
      output, _ = process.communicate(timeout=120)
      assert process.returncode == 0, output

  config.parse([], SETTINGS)
  train(fragile.Fragile, fragile.numbers, workdir=str(tmp_path / "one"))
  expected = rows(tmp_path / "one")
  assert [row["x"] for row in expected] == [1.5, 5.5, 9.5, 13.5]  # Each example counts once.
  found = rows(tmp_path / "two")
  assert [row["step"] for row in found] == [1, 2, 3, 4]  # One process writes the log.
  for row, wanted in zip(found, expected, strict=True):
    assert row == pytest.approx(wanted, rel=1e-5)
  facts = json.loads((tmp_path / "two" / "run.json").read_text())
  assert (facts["num_workers"], facts["num_replicas"]) == (2, 2)
