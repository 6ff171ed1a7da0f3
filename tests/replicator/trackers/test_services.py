"""The real packages, without a network: a run that is killed and resumed equals its metrics."""

import importlib.util
import json
import os
import signal
import subprocess
import sys

import pytest

from tests.pages import ROOT
from tests.replicator.trackers import services
from tests.replicator.trackers.conftest import Workdir

STATUS = {"mlflow": "FINISHED", "wandb": 0, "trackio": []}


@pytest.mark.slow
@pytest.mark.parametrize("service", STATUS)
def test_a_run_that_is_killed_and_resumed_equals_its_metrics(service, tmp_path):
  if importlib.util.find_spec(service) is None:
    pytest.skip(f"pip install 'replicator[{service}]'")
  environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "TRACKIO_DIR": str(
      tmp_path / "trackio"), "MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false"}

  def process(*words: object) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, services.__file__, service, workdir.folder,
                           *map(str, words)], cwd=tmp_path, env=environment, check=False,
                          capture_output=True, text=True, timeout=300)

  workdir = Workdir(tmp_path / "sweep" / "trials" / "digits")
  (workdir.folder / "trial.json").write_text("{}")
  workdir.log(0, 26)
  first = process("follow", -1, 20, 8)
  assert first.returncode == -signal.SIGKILL, first.stdout + first.stderr
  workdir.take_back(20)
  workdir.log(22, 40, loss=float("nan"))
  second = process("follow", 20, 40, 0)
  assert second.returncode == 0, second.stdout + second.stderr
  assert "warning" not in second.stdout

  read = process("read")
  assert read.returncode == 0, read.stderr
  found = json.loads(read.stdout.splitlines()[-1])
  points = {(step, name): services.as_text(value) for step, line in workdir.lines.items()
            for name, value in line.items()}
  assert len(found["points"]) == len(points)
  assert {(step, name): value for step, name, value in found.pop("points")} == points
  assert found == {"pictures": 5, "group": "sweep", "steps": 40, "status": STATUS[service]}
