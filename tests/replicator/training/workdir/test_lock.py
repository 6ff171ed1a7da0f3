"""A workdir has one owner, until that process ends, however it ends."""

import contextlib
import errno
import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from replicator import train
from replicator.app import config
from replicator.errors import RunFailed
from replicator.training.workdir import claim, lock
from tests.programs import fragile
from tests.programs.refusals import refusal

import pytest

# Owns a folder until its standard input ends, after some more code.
OWNER = """
import os, pathlib, signal, subprocess, sys
from replicator.console import command
from replicator.training.workdir.claim import FILE
from replicator.training.workdir.lock import owned
command.experiment = lambda: sys.argv[2]
folder = pathlib.Path(sys.argv[1])
with owned(folder):
  {code}
  print("owned", flush=True)
  sys.stdin.read()
"""
# Outlives the owner, until the test kills it.
FORKS = """
  begins, begun = os.pipe()
  child = os.fork()
  if not child:
    os.write(begun, b"!")
    signal.alarm(600)
    signal.pause()
  os.read(begins, 1)
  (folder / "child").write_text(str(child))
"""


@contextlib.contextmanager
def another_owner(folder: pathlib.Path, code: str = "pass") -> Iterator[subprocess.Popen]:
  """Another process that owns a folder."""
  with subprocess.Popen([sys.executable, "-c", OWNER.format(code=code), str(folder),
                         lock.command.experiment()],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
    try:
      assert process.stdout is not None
      assert process.stdout.readline() == "owned\n"
      yield process
    finally:
      process.kill()


@pytest.fixture
def no_patience(monkeypatch):
  """Nobody waits for an owner to end."""
  monkeypatch.setattr(claim, "WAIT_SECONDS", 0.0)


def content(folder: pathlib.Path) -> dict[str, tuple[int, bytes]]:
  return {str(path): (path.stat().st_mtime_ns, path.read_bytes())
          for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.usefixtures("no_patience")
def test_a_second_process_is_refused_before_it_touches_a_file(tmp_path):
  config.parse([], ["train.steps = 1"])
  with another_owner(tmp_path) as process:
    before = content(tmp_path)
    refused = refusal(train, fragile.Fragile, fragile.numbers, workdir=str(tmp_path))
    assert content(tmp_path) == before
  assert re.match(rf"--workdir={tmp_path}: is in use by process {process.pid} on {platform.node()} "
                  r"since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC; wait until it ends, stop", refused)


@pytest.mark.usefixtures("no_patience")
def test_a_killed_owner_owns_nothing_although_its_fork_lives(tmp_path):
  with another_owner(tmp_path, FORKS) as process:
    child = int((tmp_path / "child").read_text())
    assert f"in use by process {process.pid} on" in refusal(lock.check, tmp_path)
    process.kill()
    process.wait()
    try:
      with lock.owned(tmp_path):
        assert (tmp_path / claim.FILE).read_text().startswith(f"process {os.getpid()} on ")
      os.kill(child, 0)  # It lives.
    finally:
      os.kill(child, signal.SIGKILL)


@pytest.mark.usefixtures("no_patience")
def test_what_the_owner_does_loses_nothing(tmp_path):
  # With another kind of lock, closing the file that is read would unlock it.
  code = ("(folder / FILE).read_text(); os.fork() or os._exit(0); os.wait(); "
          "subprocess.run(['true'], check=True, close_fds=False)")
  with another_owner(tmp_path, code):
    assert "is in use by process" in refusal(lock.check, tmp_path)


def test_an_owner_that_ends_is_waited_for_and_that_is_said_once(tmp_path, monkeypatch, capsys):
  with another_owner(tmp_path) as process:
    naps = iter([lambda: None, lambda: None, process.communicate])
    # Threads that earlier tests left in TensorFlow sleep, too.
    here, sleep = threading.get_ident(), time.sleep
    monkeypatch.setattr(claim.time, "sleep", lambda seconds: next(naps)() if (
        threading.get_ident() == here) else sleep(seconds))
    with lock.owned(tmp_path):
      assert next(naps, None) is None
  assert re.fullmatch(rf"waiting up to 30 s for {tmp_path}, which is in use by process "
                      rf"{process.pid} on .* UTC\n", capsys.readouterr().err)


# ---- Claims, on a file system without locks -----------------------------------------------------


@pytest.fixture
def no_locks(no_patience, monkeypatch):
  """The file system has no locks, and a claim is taken without a pause."""
  def flock(file, operation):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
  monkeypatch.setattr(lock.fcntl, "flock", flock)
  monkeypatch.setattr(claim, "_CLAIM_SECONDS", 0.0)
  yield
  claim.take_over(False)


ELSEWHERE = (b"process 1 on another-machine since 2026-02-03 10:11:12 UTC\nboot 12 f0\n"
             b"2026-02-03 11:12:13 UTC")


def of_this_process(content: bytes) -> bool:
  return content.startswith(b"process %d on " % os.getpid())


def left_by(process: int) -> bytes:
  """The content that a process of this machine writes."""
  mine = claim.this_process()
  return mine.replace(b"process %d " % os.getpid(), b"process %d " % process)


@pytest.mark.usefixtures("no_locks")
def test_without_locks_the_file_is_the_lock(tmp_path):
  with lock.owned(tmp_path):
    mine = (tmp_path / claim.FILE).read_bytes()
    assert of_this_process(mine)
    assert re.search(f"in use by process {os.getpid()} on .*; wait until it ends",
                     refusal(lock.check, tmp_path))
    claim.take_over(True)  # Which is for other machines.
    assert "is in use" in refusal(lock.check, tmp_path)
    lock.confirm(tmp_path)
    assert re.fullmatch(re.escape(mine) + rb"\n20\d\d-.* UTC", (tmp_path / claim.FILE).read_bytes())
  assert not (tmp_path / claim.FILE).exists()
  lock.confirm(tmp_path)  # Nobody asks any more.


@pytest.mark.usefixtures("no_patience")
@pytest.mark.parametrize("kind, options, is_claimed", [
    ("ext4", "rw", False), ("nfs4", "rw,vers=4.2,local_lock=none", False),
    ("fuse.sshfs", "rw,user_id=0", True), ("virtiofs", "rw", True), ("cifs", "rw,nobrl", True),
    ("nfs", "rw,nolock,local_lock=all", True), ("lustre", "rw,localflock", True)])
def test_where_other_machines_do_not_see_locks_the_file_is_the_lock(
    kind, options, is_claimed, tmp_path, monkeypatch):
  device = tmp_path.stat().st_dev
  place = f"{os.major(device)}:{os.minor(device)}"
  (tmp_path / "mounts").write_text(
      "22 27 0:4321 / /proc rw,relatime - proc proc rw\n"
      f"43 27 {place} / {tmp_path} rw shared:1 - {kind} server {options}\n")
  monkeypatch.setattr(lock, "_MOUNTS", tmp_path / "mounts")
  with lock.owned(tmp_path):
    assert "is in use by" in refusal(lock.check, tmp_path)
  assert (tmp_path / claim.FILE).exists() != is_claimed


@pytest.mark.usefixtures("no_locks")
def test_a_claim_of_a_process_that_is_gone_is_taken_over(tmp_path, capsys):
  with subprocess.Popen(["true"]) as gone:
    gone.wait()
  # The number of a process may be that of another one by now: this one began at another time.
  for content in (left_by(gone.pid), re.sub(rb"\d+ (\w+)$", rb"1 \1", left_by(os.getpid()))):
    (tmp_path / claim.FILE).write_bytes(content)
    with lock.owned(tmp_path):
      assert of_this_process((tmp_path / claim.FILE).read_bytes())
    shown = content.decode().splitlines()[0]
    assert capsys.readouterr().err == f"note: {tmp_path}: taken over from {shown}\n"


@pytest.mark.usefixtures("no_locks")
@pytest.mark.parametrize("content", [ELSEWHERE, b""], ids=["elsewhere", "torn"])
def test_a_claim_of_another_machine_is_taken_over_knowingly(tmp_path, content, capsys):
  (tmp_path / claim.FILE).write_bytes(content)
  who = ("process 1 on another-machine since 2026-02-03 10:11:12 UTC, last seen 2026-02-03 "
         "11:12:13 UTC" if content else "another process")
  assert refusal(lock.check, tmp_path) == (
      f"--workdir={tmp_path}: is in use by {who}; wait until it ends, stop it, or choose another "
      "folder; if that process is gone, add --take_over to the command")
  assert (tmp_path / claim.FILE).read_bytes() == content
  claim.take_over(True)
  with lock.owned(tmp_path):
    assert of_this_process((tmp_path / claim.FILE).read_bytes())
  assert f"taken over from {who}\n" in capsys.readouterr().err


@pytest.mark.usefixtures("no_locks")
def test_another_container_is_another_machine(tmp_path, monkeypatch):
  # It has the same name and kernel. The numbers of its processes mean nothing here.
  with monkeypatch.context() as patch:
    (tmp_path / "ns").symlink_to("pid:[1]")
    patch.setattr(claim, "_NUMBERING", tmp_path / "ns")
    content = left_by(2 ** 22 + 1)
  (tmp_path / claim.FILE).write_bytes(content)
  assert "if that process is gone, add --take_over" in refusal(lock.check, tmp_path)
  assert (tmp_path / claim.FILE).read_bytes() == content


@pytest.mark.usefixtures("no_locks")
def test_a_claim_that_ends_while_it_is_looked_at_leaves_no_file_without_an_owner(
    tmp_path, monkeypatch):
  (tmp_path / claim.FILE).write_bytes(ELSEWHERE)
  create = claim.Folder.create

  def create_late(self, name, content):
    is_new = create(self, name, content)
    (tmp_path / name).unlink()
    monkeypatch.setattr(claim.Folder, "create", create)
    return is_new

  monkeypatch.setattr(claim.Folder, "create", create_late)
  with lock.owned(tmp_path):
    assert of_this_process((tmp_path / claim.FILE).read_bytes())


@pytest.mark.usefixtures("no_locks")
def test_an_owner_that_was_taken_over_ends_at_its_next_checkpoint(tmp_path):
  with pytest.raises(RunFailed, match=f"{tmp_path}: was taken over by process 1 on another-machine"
                     " since .*; this process ends"), lock.owned(tmp_path):
    (tmp_path / claim.FILE).write_bytes(ELSEWHERE)
    lock.confirm(tmp_path)  # Which every checkpoint calls.
  assert (tmp_path / claim.FILE).read_bytes() == ELSEWHERE


@pytest.mark.usefixtures("no_locks")
def test_of_two_that_take_over_at_once_one_owns(tmp_path, monkeypatch):
  (tmp_path / claim.FILE).write_bytes(ELSEWHERE)
  claim.take_over(True)
  owner, other = tmp_path / claim.FILE, left_by(1)
  monkeypatch.setattr(claim.time, "sleep", lambda seconds: owner.write_bytes(other))
  assert "is in use by process 1 on" in refusal(lock.check, tmp_path)


@pytest.mark.usefixtures("no_patience")
def test_a_process_may_own_a_folder_once_and_again_after_a_mistake(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with contextlib.suppress(ZeroDivisionError), lock.owned(tmp_path):
    for name in (pathlib.Path(), tmp_path):  # The same folder.
      assert "is in use" in refusal(lock.check, name)
    raise ZeroDivisionError
  lock.check(tmp_path)
  with another_owner(tmp_path):  # All is released.
    pass
  lock.check(tmp_path / "new")  # Only `owned` makes it.
  assert not (tmp_path / "new").exists()
