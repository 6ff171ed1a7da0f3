"""The values of `train.trackers`, and the tracker that the documentation shows."""

import csv

import gin
import pytest

from replicator import UsageError
from replicator.trackers import services, tracker
from tests.pages import BLOCKS
from tests.replicator.trackers.conftest import Memory
from tests.replicator.trackers.test_sync import follow


@pytest.mark.parametrize("trackers, message", [
    ([Memory(), 3], r"3 is no tracker; write @MLflow\(\), @WandB\(\) or @Trackio\(\), with br"),
    ([Memory], r"<class '.*Memory'> is no tracker; .* with brackets")])
def test_what_is_no_tracker_is_refused(trackers, message):
  tracker.check([Memory(), Memory()])
  with pytest.raises(UsageError, match=message):
    tracker.check(trackers)


def test_a_package_that_is_not_installed_is_named(monkeypatch):
  monkeypatch.setattr(tracker.importlib.util, "find_spec", lambda name: None)
  for kind in (services.MLflow, services.WandB, services.Trackio):
    name = kind.__name__
    with pytest.raises(UsageError, match=rf"@{name}\(\) needs its package: pip install "
                                         rf"-e '\.\[{name.lower()}\]'"):
      kind()


def test_the_tracker_of_the_documentation_equals_the_metrics(workdir):
  (block,) = (block for block in BLOCKS if "class CsvTracker" in block.text)
  assert sum(map(bool, block.text.splitlines())) <= 10
  names = {"csv": csv, "gin": gin}
  with gin.unlock_config():
    exec(compile(block.text, block.where, "exec"), names)
  for last, status in ((20, "interrupted"), (40, "finished")):  # The second one resumes.
    followers = follow(workdir, names["CsvTracker"](), first_step=last - 20)
    workdir.log(max(workdir.lines, default=-2) + 2, last)
    followers.settle(last)
    followers.end(status)
    assert not followers.said
  with (workdir.folder / "metrics.csv").open() as file:
    rows = [(int(step), name, float(value)) for step, name, value in csv.reader(file)]
  assert rows == [(step, name, value) for step, line in workdir.lines.items()
                  for name, value in line.items()]
