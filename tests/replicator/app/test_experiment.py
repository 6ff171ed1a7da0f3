"""An experiment as a user runs it: what it prints, which files it writes, and how it ends."""

import json
import re
import shlex

import pytest

from replicator.workdir import lock
from tests.programs import two_networks
from tests.programs.logs import rows
from tests.programs.processes import python
from tests.replicator.app.command_line import fails_with, flags, nothing

# ---- As a user runs it --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
  """A run of 10 steps, without --workdir; and where it was started."""
  folder = tmp_path_factory.mktemp("folder")
  return python("-m", "tests.programs.two_networks", *flags(), cwd=folder), folder


@pytest.fixture(scope="module")
def unbroken_rows(unbroken) -> list[dict]:
  _, folder = unbroken
  (workdir,) = (folder / "runs").iterdir()
  return rows(workdir)


def test_a_run_ends_with_0_and_leaves_all_files_in_a_new_workdir(unbroken):
  done, folder = unbroken
  assert done.stderr == ""  # TensorFlow prints nothing.
  (workdir,) = (folder / "runs").iterdir()
  assert re.fullmatch(r"two_networks-\d{8}-\d{6}", workdir.name)
  left = {path.name for path in workdir.iterdir()
          if "tfevents" not in path.name and path.name != "changes.diff"}
  assert left == {".owner", "checkpoints", "config.gin", "metrics.jsonl", "report.html",
                  "run.json", "samples"}
  assert len(list(workdir.glob("*tfevents*"))) == 1
  facts = json.loads((workdir / "run.json").read_text())
  assert facts["experiment"] == "two_networks"
  assert facts["command"] == shlex.join(
      ["python", "-m", "tests.programs.two_networks", *flags()])
  lines = done.stdout.splitlines()
  assert lines[-1] == f"done: runs/{workdir.name}/report.html"
  assert any(line.startswith("step 10/10  ") for line in lines)


@pytest.mark.slow
def test_a_stopped_run_prints_the_command_that_resumes_it(unbroken_rows, tmp_path):
  stopped = python("-m", "tests.programs.two_networks", *flags("two_networks.stop_at = 5"),
                   cwd=tmp_path, status=42)
  assert stopped.stderr == ""
  last = stopped.stdout.splitlines()[-1]
  said = re.fullmatch("stopped at step 6, which is saved; to resume: python (.*)", last)
  assert said
  resumed = python(*shlex.split(said[1]), cwd=tmp_path)
  assert resumed.stderr == ""
  assert "resumed at step 6" in resumed.stdout.splitlines()
  (workdir,) = (tmp_path / "runs").iterdir()
  assert rows(workdir) == unbroken_rows


# ---- In this process ----------------------------------------------------------------------------


@pytest.mark.parametrize("is_chief", [True, False])
def test_the_chief_is_refused_a_workdir_in_use_before_any_work(is_chief, run, tmp_path,
                                                               monkeypatch):
  monkeypatch.setattr(lock, "WAIT_SECONDS", 0.0)
  monkeypatch.setenv("TF_CONFIG", json.dumps({
      "cluster": {"chief": ["a:1"], "worker": ["b:1"]},
      "task": {"type": "chief" if is_chief else "worker", "index": 0}}))
  with lock.owned(tmp_path):
    status, _, err = run([f"--workdir={tmp_path}"],
                         fails_with(AssertionError("began")) if is_chief else nothing)
  assert (status, err.count("\n")) == ((2, 1) if is_chief else (0, 0))
  assert ("is in use by process" in err) == is_chief


def test_eager_steps_have_the_same_losses_and_may_read_them(run, unbroken_rows, tmp_path,
                                                            monkeypatch):
  seen = []
  compiled = two_networks.TwoNetworks.__call__

  def looking(self, batch):
    losses = compiled(self, batch)
    seen.append(losses["critic"].numpy())
    return losses

  monkeypatch.setattr(two_networks.TwoNetworks, "__call__", looking)
  status, _, err = run([*flags("train.steps_per_call = 5"), "--eager", "--workdir=eager"])
  assert (status, err, len(seen)) == (0, "", 10)
  for found, expected in zip(rows(tmp_path / "eager"), unbroken_rows, strict=True):
    assert found == pytest.approx(expected, rel=1e-9)
