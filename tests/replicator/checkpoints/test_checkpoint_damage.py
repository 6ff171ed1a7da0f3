"""Faults of the disk and crashes: corruption is named, and the last good one is used."""

import errno
import os
import re

import pytest

from replicator import Replicator, UsageError, atomic
from replicator.checkpoints import checkpoint
from replicator.checkpoints.checkpoint import Checkpoints
from replicator.errors import RunFailed
from tests.programs.counter import Counter
from tests.replicator.checkpoints.runs import save

pytestmark = pytest.mark.usefixtures("restored", "without_curves")


CORRUPTIONS = {
    "truncated": lambda folder: os.truncate(folder / "variables.data-00000-of-00001", 3),
    "no index": lambda folder: (folder / "variables.index").unlink(),
    "no manifest": lambda folder: (folder / "manifest.json").unlink()}


@pytest.mark.parametrize("corrupt", CORRUPTIONS.values(), ids=CORRUPTIONS.keys())
def test_a_corrupt_checkpoint_is_reported_and_skipped(corrupt, tmp_path, capfd):
  step = Counter()
  checkpoints = save(tmp_path, step, 2)
  step.count.assign(4.0)
  checkpoints.save(4, {})
  checkpoints.wait()
  corrupt(tmp_path / "step-00000004")
  assert checkpoints.restore()["step"] == 2
  assert step.count.numpy() == 0.0
  reported = capfd.readouterr().err.splitlines()
  assert len(reported) == 1
  assert re.search(r"step-00000004 is corrupt \(.*\); using the checkpoint of step 2 instead",
                   reported[0])
  corrupt(tmp_path / "step-00000002")
  with pytest.raises(UsageError, match=r"4 is corrupt .* no earlier checkpoint is good; put"):
    checkpoints.restore()


def test_every_byte_of_a_checkpoint_counts(tmp_path):
  save(tmp_path, Counter(), 1)
  folder = tmp_path / "step-00000001"
  for file in folder.iterdir():
    whole = file.read_bytes()
    for place in range(len(whole)):
      file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1:])
      with pytest.raises(atomic.Corrupt):
        atomic.check(folder)
    file.write_bytes(whole)
  atomic.check(folder)


def test_a_save_that_fails_leaves_the_earlier_ones_and_the_next_one_says_so(tmp_path, monkeypatch):
  def full(*arguments):
    raise OSError(errno.ENOSPC, "No space left on device")

  checkpoints = save(tmp_path, Counter(), 1)
  before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
  message = r"step-00000002: could not be saved \(No space left"
  for find_out in (checkpoints.wait, lambda: checkpoints.save(3, {})):
    with monkeypatch.context() as patched:
      patched.setattr(os, "fsync", full)
      checkpoints.save(2, {})
      with pytest.raises(RunFailed, match=message) as failed:
        find_out()
    assert "\n" not in str(failed.value)
  assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
  assert len(list(tmp_path.iterdir())) == 1
  checkpoints.save(3, {})
  checkpoints.wait()
  assert checkpoint.steps_of(tmp_path) == [1, 3]


@pytest.mark.parametrize("worker", [0, 1])
def test_a_checkpoint_whose_replacement_was_interrupted_is_restored(worker, tmp_path):
  class Worker(Replicator):
    worker_id = worker

  save(tmp_path, saved := Counter(), 1)
  saved.count.assign(2.0)
  save(tmp_path, saved, 2)
  # What `atomic` leaves when it is killed between its two renames.
  (tmp_path / "step-00000002").rename(tmp_path / ".old-step-00000002")
  (tmp_path / ".tmp-step-00000002").mkdir()
  left = sorted(path.name for path in tmp_path.iterdir())
  assert checkpoint.read(tmp_path)["count"] == 2.0  # A reader finds it, and changes nothing:
  assert sorted(path.name for path in tmp_path.iterdir()) == left  # a run may be at work there.
  assert checkpoint.steps_of(tmp_path) == [1, 2]
  restored = Counter()
  assert Checkpoints(tmp_path, restored, Worker()).restore()["step"] == 2
  assert restored.count.numpy() == 2.0
  # Only the chief knows that nobody writes.
  assert sorted(path.name for path in tmp_path.iterdir()) == [
      *[".tmp-step-00000002"] * worker, "step-00000001", "step-00000002"]
