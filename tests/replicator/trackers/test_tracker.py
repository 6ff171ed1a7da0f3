"""The values of `train.trackers`."""

import pytest

from replicator import UsageError
from replicator.trackers import services, tracker
from tests.replicator.trackers.conftest import Memory


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
