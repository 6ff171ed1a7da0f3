"""A published folder is whole, the old or the new one, whenever the process is killed."""

import errno
import itertools
import os
import pathlib
import secrets
import shutil
from collections.abc import Callable, Iterator

from replicator import atomic

import pytest

CHANGES = [(os, "fsync"), (os, "unlink"), (os, "rmdir"), (pathlib.Path, "rename"),
           (pathlib.Path, "mkdir"), (pathlib.Path, "write_text")]
"""Everything by which a folder is changed."""

class Killed(BaseException):
  """Stands for the end of the process: after it, no change of the file system succeeds."""


def publish(folder: pathlib.Path, value: str) -> None:
  def write(temporary):
    for name in ("a", "b"):
      (temporary / name).write_text(value)
  atomic.publish(folder, write, {"value": value})


def is_stopped(monkeypatch, moment: int, error: BaseException, action: Callable[..., None],
               *arguments) -> bool:
  """Whether an action comes to its change number `moment`, which raises the error."""
  numbers = itertools.count(1)

  def failing(change: Callable) -> Callable:
    def instead(*arguments, **options):
      number = next(numbers)
      if number == moment or (number > moment and isinstance(error, Killed)):
        raise error
      return change(*arguments, **options)
    return instead

  with monkeypatch.context() as patched:
    for owner, name in CHANGES:
      patched.setattr(owner, name, failing(getattr(owner, name)))
    try:
      action(*arguments)
    except (Killed, OSError) as raised:
      assert raised is error
  return next(numbers) > moment


def found(parent: pathlib.Path) -> dict[str, str]:
  """The values of all folders of `parent`, every one of which must be whole."""
  atomic.clean(parent)
  return {folder.name: atomic.check(folder)["value"] for folder in parent.iterdir()}


def two_folders(parent: pathlib.Path) -> pathlib.Path:
  for name in ("the same", "earlier"):
    publish(parent / name, "old")
  return parent


def interrupted(tmp_path: pathlib.Path, monkeypatch, action: Callable[..., None], *arguments
                ) -> Iterator[pathlib.Path]:
  """The files after a kill at each moment of an action on "the same"; the last is unharmed."""
  for moment in range(1, 40):
    parent = two_folders(tmp_path / str(moment))
    killed = is_stopped(monkeypatch, moment, Killed(), action, parent / "the same", *arguments)
    yield parent
    if not killed:
      return
  raise AssertionError("it does not end")


@pytest.mark.parametrize("name", ["another", "the same"])
def test_a_kill_at_any_moment_leaves_whole_folders(name, tmp_path, monkeypatch):
  survived = [found(parent) for parent in interrupted(
      tmp_path, monkeypatch, lambda folder: publish(folder.with_name(name), "new"))]
  old = {"earlier": "old", "the same": "old"}
  first = survived.index({**old, name: "new"})
  assert 8 < first < len(survived)
  assert survived == [old] * first + [{**old, name: "new"}] * (len(survived) - first)


@pytest.fixture
def on_the_disk(tmp_path, monkeypatch) -> list[str]:
  """The files that are forced to the disk, and those that get another name then, in order."""
  events, sync = [], os.fsync

  def record_sync(descriptor):
    same = lambda path: os.path.samestat(path.stat(), os.fstat(descriptor))
    found = next(path for path in (tmp_path, *tmp_path.rglob("*")) if same(path))
    events.append(f"{found.relative_to(tmp_path)}, {found.stat().st_size} bytes"
                  if found.is_file() else str(found.relative_to(tmp_path)))
    sync(descriptor)

  def recording(move):
    def instead(path, target):
      move(path, target)  # If it fails, nothing has happened.
      events.append(f"{path.name} -> {target.name}")
    return instead

  monkeypatch.setattr(os, "fsync", record_sync)
  for name in ("rename", "replace"):
    monkeypatch.setattr(pathlib.Path, name, recording(getattr(pathlib.Path, name)))
  return events


def test_what_gets_a_name_is_on_the_disk_before(tmp_path, on_the_disk, monkeypatch):
  publish(tmp_path / "new", "content")
  size = (tmp_path / "new" / "manifest.json").stat().st_size
  assert on_the_disk == [
      ".tmp-new/a, 7 bytes", ".tmp-new/b, 7 bytes", f".tmp-new/manifest.json, {size} bytes",
      ".tmp-new", ".tmp-new -> new", "."]
  on_the_disk.clear()
  monkeypatch.setattr(secrets, "token_hex", lambda size: "random")
  atomic.write_whole(tmp_path / "file", "content")
  assert on_the_disk == [".file.random, 7 bytes", ".file.random -> file"]


def test_damage_is_noticed_anywhere_in_a_large_file_and_in_the_manifest(tmp_path):
  atomic.publish(tmp_path / "a", lambda folder: (folder / "f").write_bytes(bytes(3 << 20)), {})
  for name, places in (("f", (0, 1 << 20, (3 << 20) - 1)), ("manifest.json", range(50))):
    whole = (tmp_path / "a" / name).read_bytes()
    for place in places:
      damaged = whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1:]
      (tmp_path / "a" / name).write_bytes(damaged)
      with pytest.raises(atomic.Corrupt):
        atomic.check(tmp_path / "a")
    (tmp_path / "a" / name).write_bytes(whole)
  atomic.check(tmp_path / "a")


def test_a_kill_of_a_removal_leaves_the_folder_or_nothing(tmp_path, monkeypatch):
  survived = [found(parent) for parent in interrupted(tmp_path, monkeypatch, atomic.remove)]
  assert survived[0] == {"earlier": "old", "the same": "old"}
  assert all(each in (survived[0], {"earlier": "old"}) for each in survived)


def test_a_kill_of_the_repair_loses_nothing(tmp_path, monkeypatch):
  for parent in interrupted(tmp_path, monkeypatch, publish, "new"):
    expected = found(pathlib.Path(shutil.copytree(parent, f"{parent}-repaired")))
    for moment in range(1, 20):
      copy = pathlib.Path(shutil.copytree(parent, f"{parent}-{moment}"))
      killed = is_stopped(monkeypatch, moment, Killed(), atomic.clean, copy)
      assert found(copy) == expected
      if not killed:
        break
    assert not killed


def test_after_a_kill_one_publishes_and_removes_as_before(tmp_path, monkeypatch):
  for parent in interrupted(tmp_path, monkeypatch, publish, "new"):
    publish(parent / "the same", "newest")
    assert atomic.check(parent / "the same")["value"] == "newest"
    atomic.remove(parent / "the same")
    assert found(parent) == {"earlier": "old"}


def test_what_is_removed_does_not_come_back_from_where_it_was_set_aside(tmp_path):
  parent = two_folders(tmp_path)
  shutil.copytree(parent / "the same", parent / ".old-the same")  # A crash at the end of `publish`.
  atomic.remove(parent / "the same")
  assert atomic.published(parent) == {"earlier": parent / "earlier"}
  assert found(parent) == {"earlier": "old"}


def test_a_reader_finds_a_folder_that_was_set_aside_until_the_new_one_is_there(tmp_path):
  parent = two_folders(tmp_path)
  places = {name: parent / name for name in ("the same", "earlier")}
  assert atomic.published(parent) == places
  aside = (parent / "the same").rename(parent / ".old-the same")
  (parent / ".tmp-the same").mkdir()
  assert atomic.published(parent) == {**places, "the same": aside}
  atomic.repair(parent)
  assert atomic.published(parent) == places
  (parent / "the same").rename(aside)
  (parent / ".tmp-the same").rename(parent / "the same")
  assert atomic.published(parent) == places


def test_an_error_at_any_moment_leaves_a_whole_folder(tmp_path, monkeypatch):
  for moment in range(1, 40):
    folder = two_folders(tmp_path / str(moment)) / "the same"
    failed = is_stopped(monkeypatch, moment, OSError("disk fault"), publish, folder, "new")
    assert atomic.check(folder)["value"] in ("old", "new")  # Without any repair.
    assert set(found(folder.parent)) == {"earlier", "the same"}
    if not failed:
      break
  assert moment > 8 and not failed


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG, errno.EIO])
def test_a_fault_of_the_disk_is_named(number):
  words = os.strerror(number)
  assert atomic.disk_fault(OSError(number, words)) == words
  assert atomic.disk_fault(RuntimeError(f"of TensorFlow: /a/b; {words} [[x]]")) == words
  assert atomic.disk_fault(OSError(errno.ENOENT, "No such file or directory")) is None


def test_two_machines_may_write_a_file_at_once(tmp_path, monkeypatch):
  to_disk = os.fsync

  def while_another_writes(descriptor):
    monkeypatch.setattr(os, "fsync", to_disk)
    atomic.write_whole(tmp_path / "file", "other")
    to_disk(descriptor)

  monkeypatch.setattr(os, "getpid", lambda: 4711)  # The same number on both.
  monkeypatch.setattr(os, "fsync", while_another_writes)
  atomic.write_whole(tmp_path / "file", "mine")
  assert (tmp_path / "file").read_text() == "mine"
  assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("make", [lambda path: path.write_text("new"), pathlib.Path.mkdir],
                         ids=["file", "folder"])
def test_what_is_created_has_its_name_when_it_is_whole(make, tmp_path):
  path = tmp_path / "made" / "it"
  with atomic.created(path) as temporary:
    make(temporary)
    assert not path.exists() and temporary.parent == path.parent
  assert list(path.parent.iterdir()) == [path]
  with pytest.raises(FileExistsError), atomic.created(path):
    raise AssertionError("the body runs in vain")
  with pytest.raises(ZeroDivisionError), atomic.created(tmp_path / "other") as temporary:
    make(temporary)
    1 / 0  # noqa: B018
  assert [each.name for each in tmp_path.iterdir()] == ["made"]
  with pytest.raises(FileExistsError), atomic.created(tmp_path / "late") as temporary:
    make(temporary)
    (tmp_path / "late").write_text("faster")
  assert sorted(each.name for each in tmp_path.iterdir()) == ["late", "made"]
  assert (tmp_path / "late").read_text() == "faster"
