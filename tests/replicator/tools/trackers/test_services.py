"""The real packages, without a network: records equal the metrics of runs that are killed."""

import functools
import importlib.util
import json
import signal

from replicator.tools.trackers import services as trackers
from replicator.tools.trackers import tracker
from tests.programs.processes import python
from tests.programs.refusals import refusal
from tests.replicator.tools.trackers import services
from tests.replicator.tools.trackers.conftest import Memory, Process, Workdir

import pytest

STATUS = {"mlflow": "FINISHED", "wandb": 0, "trackio": []}


@pytest.mark.slow
@pytest.mark.parametrize("what, kill", [
    ("killed", 8), ("killed", 14), ("rolled back", 0)], ids=["behind", "ahead", "rolled back"])
@pytest.mark.parametrize("service", STATUS)
def test_a_run_that_is_killed_or_rolled_back_equals_its_metrics(service, what, kill, tmp_path):
  """A kill leaves the service behind the checkpoint of step 20, or ahead of it."""
  if importlib.util.find_spec(service) is None:
    pytest.skip(f"pip install 'replicator[{service}]'")
  workdir = Workdir(tmp_path / "sweep" / "trials" / "digits")
  process = functools.partial(
      python, services.__file__, service, workdir.folder, cwd=tmp_path, HOME=str(tmp_path),
      TRACKIO_DIR=str(tmp_path / "trackio"), MLFLOW_DISABLE_TELEMETRY="true",
      WANDB_ERROR_REPORTING="false")
  (workdir.folder / "trial.json").write_text("{}")
  if what == "killed":
    process("kill", kill, status=-signal.SIGKILL)
    assert "warning" not in process("resume").stdout
  else:
    assert "warning" not in process("roll_back").stdout

  found = json.loads(process("read").stdout.splitlines()[-1])
  points = {(step, name): services.as_text(value) for step, line in workdir.lines.items()
            for name, value in line.items()}
  assert len(found["points"]) == len(points)
  assert {(step, name): value for step, name, value in found.pop("points")} == points
  assert found == {"pictures": 5, "records": 1 if what == "killed" else 2, "group": "sweep",
                   "steps": 40, "status": STATUS[service], "note": "a line", "counts": 64}


@pytest.mark.parametrize("folder, group", [
    ("digits", ""), ("rates/trials/rate=0.1_12345678", "rates")])
def test_a_tracker_learns_the_configuration_and_the_sweep_of_the_run(folder, group, tmp_path):
  workdir, memory = Workdir(tmp_path / folder), Memory()
  if group:
    (workdir.folder / "trial.json").write_text("{}")
  Process(workdir, memory).end()
  (run,) = memory.runs.values()
  assert len(run.id) == 16 and run.id == memory.id
  assert (run.name, run.experiment, run.group) == (workdir.folder.name, "sngan", group)
  assert run.workdir == workdir.folder
  assert run.config == {
      "train.steps": 40, "train.callbacks": "[@MLflow()]", "Network.widths": (8, 16),
      "Network.activation": "@relu", "deep/Network.name": "a b"}


def test_a_package_that_is_not_installed_is_named(monkeypatch):
  monkeypatch.setattr(tracker.importlib.util, "find_spec", lambda name: None)
  for kind in (trackers.MLflow, trackers.WandB, trackers.Trackio):
    name = kind.__name__
    assert refusal(kind) == f"@{name}() needs its package: pip install 'replicator[{name.lower()}]'"
