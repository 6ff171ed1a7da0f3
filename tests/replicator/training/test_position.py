"""The agreement of all workers, and the means of scalars between log points."""

import json
import pathlib
import types

from replicator.errors import RunFailed, UsageError
from replicator.training.divergence.guard import Divergence, Guard
from replicator.training.divergence.rollback import Diverged, Rollback
from replicator.training.inputs.inputs import InputContext
from replicator.training.position import Position, RunningMeans
from replicator.training.schedule import Schedule

import numpy as np
import pytest

DIVERGED = Diverged(Divergence(6, {"loss": float("nan")}, {}), "its numbers are here")


class Cluster:
  """One of two workers, and its checkpoints; keeps the order of what it does."""

  restored = 4, 4  # The step that each worker restored.

  def __init__(self, fails_to_write: bool = False):
    self.events: list[str] = []
    self.fails_to_write = fails_to_write
    self.is_empty = False  # Whether there is no checkpoint any more.

  def by_worker(self, value):
    self.events.append("meet")
    return np.array(self.restored if value >= 0 else [value, value])  # Neither goes back.

  def wait(self):
    self.events.append("wait")
    if self.fails_to_write:
      raise RunFailed("the disk is full")

  def restore(self, due_only=False, step=None):
    self.events.append("restore")
    return None if self.is_empty else {
        "step": 4, "seconds": 1.0, "window": {"sums": {}, "counts": {}}, "examples": None,
        "digest": None, "rollbacks": 0, "skipped": 0}


def position(cluster: Cluster, guard: Guard, folder: pathlib.Path) -> Position:
  """The position of a run that `cluster` has restored."""
  run = types.SimpleNamespace(inputs=None, replicator=cluster, saver=cluster, step=0, seconds=0.0,
                              is_chief=False, schedule=Schedule(9, 1, 1, 0, 0))
  return Position(run, Rollback(guard, cluster, folder, InputContext(1)))


@pytest.mark.parametrize("fails_to_write", [False, True])
def test_all_workers_wait_for_the_writer_before_they_restore(fails_to_write, tmp_path):
  cluster = Cluster(fails_to_write)
  found = position(cluster, Guard("roll_back"), tmp_path)
  cluster.events.clear()
  run = found.run
  run.step = 6
  assert found.roll_back(DIVERGED).endswith("rolled back to step 4, 1 of at most 3 times")
  assert cluster.events == ["wait", "meet", "restore", "meet"]
  assert (run.step, found.rollback.rollbacks, found.rollback.skipped) == (4, 1, 2)


def test_without_a_checkpoint_nothing_is_rolled_back(tmp_path):
  cluster = Cluster()
  state = position(cluster, Guard("roll_back"), tmp_path)
  cluster.is_empty = True
  with pytest.raises(RunFailed, match="its numbers are here; there is no earlier checkpoint"):
    state.roll_back(DIVERGED)


def test_all_workers_wait_for_the_writer_before_one_ends_the_run(tmp_path):
  cluster = Cluster()
  state = position(cluster, Guard("stop"), tmp_path)
  cluster.events.clear()
  with pytest.raises(RunFailed, match="step 6: loss is nan; its numbers are here"):
    state.roll_back(DIVERGED)
  assert cluster.events == ["wait", "meet"]


def test_workers_that_restored_other_steps_are_an_error(tmp_path):
  cluster = Cluster()
  cluster.restored = 40, 20
  with pytest.raises(UsageError, match="--workdir: the workers restored different steps, 40, 20; "):
    position(cluster, Guard(), tmp_path)


def test_a_mean_is_over_the_steps_that_returned_the_scalar():
  means = RunningMeans()
  means.add({"a": np.array([1.0, 2.0, 3.0])})
  means.add({"a": np.array([4.0]), "b": np.array([10.0])})
  assert means.take() == {"a": 2.5, "b": 10.0}
  assert means.take() == {}
  means.add({"a": np.array([7.0])})
  assert means.take() == {"a": 7.0}


def test_sums_are_of_64_bits():
  means = RunningMeans()
  means.add({"a": np.array([2.0 ** 25, 1.0], np.float32)})
  assert means.take() == {"a": 2.0 ** 24 + 0.5}


def test_means_go_on_from_their_state_and_of_a_counter_the_last_value_counts():
  means = RunningMeans()
  means.add({"a": np.array([1.0, 2.0]), "b": np.array([1.0, 2.0])}, ["a"])
  resumed = RunningMeans(json.loads(json.dumps(means.state())))
  resumed.add({"a": np.array([9.0]), "b": np.array([6.0])}, ["a"])
  assert resumed.take() == {"a": 9.0, "b": 3.0}
  assert means.take() == {"a": 2.0, "b": 1.5}  # It has its own.
