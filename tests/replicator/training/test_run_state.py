"""The agreement of all workers. Two processes are in test_recovery."""

import numpy as np
import pytest

from replicator.divergence.guard import Divergence, Guard
from replicator.divergence.recovery import Diverged, Recovery
from replicator.errors import RunFailed, UsageError
from replicator.training.run_state import RunState, check_agreement

DIVERGED = Diverged(Divergence(6, {"loss": float("nan")}, {}), "its numbers are here")


class Cluster:
  """One of two workers, and its checkpoints; keeps the order of what it does."""

  num_pipelines = 2
  num_local_replicas = 1

  def __init__(self, fails_to_write: bool = False):
    self.events: list[str] = []
    self.fails_to_write = fails_to_write

  def run(self, function):
    self.events.append("meet")

    class Gathered:
      numpy = staticmethod(lambda: np.array([[4, 0], [4, 0]]))  # The step, and the examples.
    return [Gathered]

  def wait(self):
    self.events.append("wait")
    if self.fails_to_write:
      raise RunFailed("the disk is full")

  def restore(self):
    self.events.append("restore")
    return {"step": 4, "seconds": 1.0, "window": {"sums": {}, "count": 0}, "rollbacks": 0,
            "skipped": 0}


@pytest.mark.parametrize("fails_to_write", [False, True])
def test_all_workers_wait_for_the_writer_before_they_restore(fails_to_write, tmp_path):
  cluster = Cluster(fails_to_write)
  recovery = Recovery(Guard("roll_back"), cluster, tmp_path, {"seed": 0})
  state = RunState(cluster, cluster, recovery)
  cluster.events.clear()
  state.step = 6
  assert state.roll_back(DIVERGED).endswith("rolled back to step 4, 1 of at most 3 times")
  assert cluster.events == ["wait", "meet", "restore", "meet"]
  assert (state.step, recovery.rollbacks, recovery.skipped) == (4, 1, 2)


def test_all_workers_wait_for_the_writer_before_one_ends_the_run(tmp_path):
  cluster = Cluster()
  state = RunState(cluster, cluster, Recovery(Guard("stop"), cluster, tmp_path, {"seed": 0}))
  cluster.events.clear()
  with pytest.raises(RunFailed, match="step 6: loss is nan; its numbers are here"):
    state.roll_back(DIVERGED)
  assert cluster.events == ["wait", "meet"]


@pytest.mark.parametrize("steps, examples, message", [
    ([40, 20], [7, 7], "--workdir: worker 1 restored step 20, the others step 40; all workers"),
    ([40, 20, 40, 0, 40], [7] * 5,
     "--workdir: worker 1 restored step 20, worker 3 restored step 0, the others"),
    ([0, 0], [1000, 999], "the data: worker 1 has 999 examples, the others 1,000; every worker"),
    ([0] * 4, [0, 7, 7, 8],
     "the data: worker 0 has 0 examples, worker 3 has 8 examples, the others 7;")])
def test_workers_that_do_not_agree_are_named(steps, examples, message):
  with pytest.raises(UsageError, match=f"^{message}"):
    check_agreement(steps, examples)
  check_agreement([40] * 3, [100] * 3)
