"""The real packages, without a network: a run that is killed and resumed equals its metrics."""

import functools
import importlib.util
import json
import signal

from tests.programs.processes import python
from tests.replicator.tools.trackers import services
from tests.replicator.tools.trackers.conftest import Workdir

import pytest

STATUS = {"mlflow": "FINISHED", "wandb": 0, "trackio": []}


@pytest.mark.slow
@pytest.mark.parametrize("service", STATUS)
def test_a_run_that_is_killed_and_resumed_equals_its_metrics(service, tmp_path):
  if importlib.util.find_spec(service) is None:
    pytest.skip(f"pip install -e '.[{service}]'")
  workdir = Workdir(tmp_path / "sweep" / "trials" / "digits")
  process = functools.partial(
      python, services.__file__, service, workdir.folder, cwd=tmp_path, HOME=str(tmp_path),
      TRACKIO_DIR=str(tmp_path / "trackio"), MLFLOW_DISABLE_TELEMETRY="true",
      WANDB_ERROR_REPORTING="false")
  (workdir.folder / "trial.json").write_text("{}")
  workdir.log(0, 26)
  process("follow", -1, 20, 8, status=-signal.SIGKILL)
  workdir.take_back(20)
  workdir.log(22, 40, loss=float("nan"))
  assert "warning" not in process("follow", 20, 40, 0).stdout

  found = json.loads(process("read").stdout.splitlines()[-1])
  points = {(step, name): services.as_text(value) for step, line in workdir.lines.items()
            for name, value in line.items()}
  assert len(found["points"]) == len(points)
  assert {(step, name): value for step, name, value in found.pop("points")} == points
  assert found == {"pictures": 5, "group": "sweep", "steps": 40, "status": STATUS[service]}
