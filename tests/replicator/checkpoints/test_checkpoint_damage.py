"""Faults of the disk and crashes: corruption is named, and the last good one is used."""

import concurrent.futures
import errno
import os
import pathlib
import re
import shutil
import threading

import pytest

from replicator import Replicator, UsageError, atomic
from replicator.checkpoints import checkpoint
from replicator.checkpoints.checkpoint import Checkpoints
from replicator.errors import RunFailed
from tests.programs.counter import Counter
from tests.replicator.checkpoints.runs import save

pytestmark = pytest.mark.usefixtures("restored", "without_curves")


def flip(file: pathlib.Path) -> None:
  content = bytearray(file.read_bytes())
  content[len(content) // 2] ^= 1
  file.write_bytes(content)


CORRUPTIONS = {
    "truncated": lambda folder: os.truncate(folder / "variables.data-00000-of-00001", 3),
    "flipped byte": lambda folder: flip(folder / "variables.data-00000-of-00001"),
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


@pytest.mark.parametrize("fails", ["rename", "fsync", "write"])
def test_a_save_that_fails_leaves_the_earlier_ones_and_nothing_else(fails, tmp_path, monkeypatch):
  def full(*arguments, **options):
    raise OSError(errno.ENOSPC, "No space left on device")

  step = Counter()
  checkpoints = save(tmp_path, step, 1)
  before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
  if fails == "rename":
    monkeypatch.setattr(pathlib.Path, "rename", full)
  elif fails == "fsync":
    monkeypatch.setattr(os, "fsync", full)
  else:
    monkeypatch.setattr(checkpoint, "_write_bundle", full)
  step.count.assign(2.0)
  checkpoints.save(2, {})
  with pytest.raises(RunFailed, match=r"step-00000002: could not be saved \(No space left") as full:
    checkpoints.wait()
  assert "\n" not in str(full.value)
  monkeypatch.undo()
  assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
  assert len(list(tmp_path.iterdir())) == 1
  checkpoints.save(3, {})
  checkpoints.wait()
  assert checkpoint.steps_of(tmp_path) == [1, 3]


def test_a_look_at_a_save_does_not_wait_for_it_and_reports_its_end(tmp_path, monkeypatch):
  looked = threading.Event()

  def fail(*arguments):
    looked.wait(timeout=60)
    raise OSError(errno.ENOSPC, "No space left on device")

  monkeypatch.setattr(checkpoint, "_write_bundle", fail)
  checkpoints = Checkpoints(tmp_path, Counter())
  checkpoints.check_written()
  checkpoints.save(1, {})
  checkpoints.check_written()
  looked.set()
  concurrent.futures.wait([checkpoints._saving])
  with pytest.raises(RunFailed, match="step-00000001: could not be saved"):
    checkpoints.check_written()
  checkpoints.check_written()


def test_a_save_first_reports_that_the_one_before_it_failed(tmp_path, monkeypatch):
  def full(*arguments):
    raise OSError(errno.ENOSPC, "No space left on device")

  checkpoints = save(tmp_path, Counter(), 1)
  with monkeypatch.context() as patched:
    patched.setattr(checkpoint, "_write_bundle", full)
    checkpoints.save(2, {})
    with pytest.raises(RunFailed, match="step-00000002: could not be saved"):
      checkpoints.save(3, {})
  assert checkpoint.steps_of(tmp_path) == [1]


@pytest.mark.parametrize("worker", [0, 1])
def test_a_checkpoint_whose_replacement_was_interrupted_is_restored(worker, tmp_path):
  class Worker(Replicator):
    worker_id = worker

  save(tmp_path, saved := Counter(), 1)
  saved.count.assign(2.0)
  checkpoints = save(tmp_path, saved, 2)
  rename = pathlib.Path.rename
  killed = threading.Event()

  def rename_once(path, target):
    if path.name.startswith(".tmp-step"):  # A crash between the two renames of `publish`.
      killed.set()
    if killed.is_set():
      raise SystemExit
    rename(path, target)

  with pytest.MonkeyPatch.context() as patched:
    patched.setattr(pathlib.Path, "rename", rename_once)
    patched.setattr(shutil, "rmtree", lambda *arguments, **options: None)
    checkpoints.save(2, {})
    with pytest.raises(SystemExit):
      checkpoints.wait()
  assert killed.is_set() and not (tmp_path / "step-00000002").exists()
  left = sorted(path.name for path in tmp_path.iterdir())
  assert checkpoint.read(tmp_path)["count"] == 2.0  # A reader finds it, and changes nothing:
  assert sorted(path.name for path in tmp_path.iterdir()) == left  # a run may be at work there.
  assert checkpoint.steps_of(tmp_path) == [1, 2]
  restored = Counter()
  assert Checkpoints(tmp_path, restored, Worker()).restore()["step"] == 2
  assert restored.count.numpy() == 2.0


def test_what_a_crash_left_behind_is_removed(tmp_path):
  save(tmp_path, Counter(), 1)
  (tmp_path / ".tmp-step-00000002").mkdir()
  (tmp_path / ".tmp-step-00000002" / "variables.index").write_text("half")
  assert Checkpoints(tmp_path, Counter()).restore()["step"] == 1
  assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
