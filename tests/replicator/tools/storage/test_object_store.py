"""A store has whole checkpoints at any moment, and whoever reads it sees no others."""

import functools
import os
import pathlib

from replicator import atomic
from replicator.errors import UsageError
from replicator.tools.storage import remote
from replicator.tools.storage.object_store import ObjectStore
from replicator.training.workdir import places
from tests.programs.refusals import refusal

import pytest


@pytest.fixture
def store(tmp_path):
  """The folder that is an object store, below which `run` is a workdir."""
  folder = tmp_path / "store"
  folder.mkdir()
  return folder


@pytest.fixture
def folder(tmp_path):
  """A workdir with two checkpoints."""
  folder = tmp_path / "work" / "run"
  (folder / "samples").mkdir(parents=True)
  (folder / "run.json").write_text("{}")
  (folder / "metrics.jsonl").write_text("one\n")
  (folder / "samples" / "step-00000001.png").write_text("picture")
  (folder / ".owner").write_text("me")
  save(folder, 1)
  save(folder, 2)
  return folder


def save(folder: pathlib.Path, step: int, content: str = "values", why: str = "due") -> None:
  def write(temporary: pathlib.Path) -> None:
    (temporary / "variables.index").write_text(content)
    (temporary / "variables.data").write_text(f"{content} of {step}")

  atomic.publish(folder / "checkpoints" / f"step-{step:08d}", write, {"step": step, "why": why})


def of(store: pathlib.Path) -> ObjectStore:
  return ObjectStore(f"file://{store / 'run'}")


def content(folder: pathlib.Path) -> dict[str, str]:
  """The visible files of a folder."""
  return {name: path.read_text() for path in folder.rglob("*") if path.is_file()
          and not (name := path.relative_to(folder).as_posix()).startswith(".")}


def pulled(store: pathlib.Path, to: pathlib.Path, **options) -> dict[str, str]:
  to.mkdir(exist_ok=True)
  of(store).pull(to, **options)
  return content(to)


def good_steps(folder: pathlib.Path) -> list[int]:
  """The steps of the checkpoints in a copy; every one is whole."""
  return sorted(atomic.check(path)["step"] for path in (folder / "checkpoints").glob("step-*"))


class Recorded:
  """A file system that records what it writes, and fails after some of that."""

  def __init__(self, fs, last: int = 10 ** 9):
    self._fs = fs
    self._last = last
    self.written: list[str] = []

  def put(self, here: list[str], there: list[str]) -> None:
    for one, other in zip(here, there, strict=True):
      self._note("put", other)
      self._fs.put([one], [other])

  def rm_file(self, path: str) -> None:
    self._note("rm", path)
    self._fs.rm_file(path)

  def _note(self, what: str, path: str) -> None:
    if len(self.written) == self._last:
      raise OSError("the network is down")
    self.written.append(f"{what} {path.partition('/store/run/')[2]}")

  def __getattr__(self, name: str):
    return getattr(self._fs, name)


def recorded(store: pathlib.Path, last: int = 10 ** 9) -> tuple[ObjectStore, Recorded]:
  objects = of(store)
  objects._fs = Recorded(objects._fs, last)
  return objects, objects._fs


def test_only_what_has_changed_is_written_and_the_manifest_of_new_content_goes_first_and_last(
    store, folder):
  objects, fs = recorded(store)
  objects.push(folder)
  fs.written.clear()
  objects.push(folder)
  assert fs.written == []  # Nothing has changed.
  (folder / "metrics.jsonl").write_text("one\ntwo\n")
  (folder / "samples" / "step-00000001.png").unlink()
  save(folder, 2, "others")
  atomic.remove(folder / "checkpoints" / "step-00000001")
  objects.push(folder)
  assert not [line for line in fs.written if "run.json" in line]
  replaced = [line for line in fs.written if "step-00000002" in line]
  assert [replaced[0], replaced[-1]] == [
      f"{what} checkpoints/step-00000002/manifest.json" for what in ("rm", "put")]
  assert content(store / "run") == content(folder)


def test_what_a_rollback_has_left_behind_goes_first_of_all(store, folder):
  objects, fs = recorded(store)
  objects.push(folder)
  fs.written.clear()
  atomic.remove(folder / "checkpoints" / "step-00000002")
  save(folder, 1, "others")
  objects.push(folder)
  assert fs.written[0] == "rm checkpoints/step-00000002/manifest.json"


@pytest.mark.parametrize("new_process", [False, True], ids=["goes on", "resumes"])
def test_a_push_may_break_off_anywhere(store, folder, tmp_path, new_process):
  """After each number of writes a reader finds whole checkpoints only; the next push mends all."""
  of(store).push(folder)
  last, done = 0, False
  while not done:
    objects = of(store)
    here = tmp_path / f"here-{last}"
    here.mkdir()
    objects.pull(here)
    before = good_steps(here)
    objects._fs = Recorded(objects._fs, last)
    # The next one is new, the newest one is saved again, and the others are obsolete.
    save(here, before[-1], why=f"stopped {last}")
    save(here, before[-1] + 1)
    for step in before[:-1]:
      atomic.remove(here / "checkpoints" / f"step-{step:08d}")
    (here / "metrics.jsonl").write_text(f"to {last}")
    try:
      objects.push(here)
      done = True
    except OSError:
      pass
    reader = tmp_path / f"reader-{last}"
    pulled(store, reader)
    assert set(good_steps(reader)) <= {*before, before[-1] + 1} and good_steps(reader)
    if new_process:
      objects = of(store)
      objects.pull(tmp_path / f"reader-{last}")
      objects.push(reader)
      assert content(store / "run") == content(reader)
    else:
      objects._fs = objects._fs._fs
      objects.push(here)
      assert content(store / "run") == content(here)
      assert content(here) == pulled(store, reader)
    last += 1
  assert last > 8


def test_a_reader_takes_only_what_changed_and_leaves_a_torn_checkpoint(store, folder, tmp_path):
  objects = of(store)
  objects.push(folder)
  copy = tmp_path / "copy"
  assert pulled(store, copy) == content(folder)
  kept = copy / "checkpoints" / "step-00000001" / "variables.data"
  stamp = kept.stat().st_mtime_ns, (copy / "metrics.jsonl").stat().st_mtime_ns

  two = store / "run" / "checkpoints" / "step-00000002"
  (two / "manifest.json").unlink()
  (store / "run" / "run.json").write_text('{"a": 1}')
  assert {name for name in pulled(store, copy) if name.startswith("checkpoints/step-00000002")
          } == set()
  assert (copy / "run.json").read_text() == '{"a": 1}'
  assert (kept.stat().st_mtime_ns, (copy / "metrics.jsonl").stat().st_mtime_ns) == stamp


@pytest.mark.parametrize("tear", [
    lambda place: (place / "variables.data").unlink(),
    lambda place: (place / "variables.data").write_text("VALUES of 2"),
    lambda place: (place / "manifest.json").write_text("{}")], ids=["missing", "other", "manifest"])
def test_the_newest_checkpoint_that_is_good_is_found(store, folder, tmp_path, tear):
  of(store).push(folder)
  tear(store / "run" / "checkpoints" / "step-00000002")
  pulled(store, tmp_path / "copy", checkpoints="newest", logs=False)
  found = {path.parent.name for path in (tmp_path / "copy").rglob("manifest.json")}
  assert found == {"step-00000001", "step-00000002"}  # Who restores reports the corrupt one.
  assert not (tmp_path / "copy" / "run.json").exists()
  of(store).push(folder)
  pulled(store, tmp_path / "copy", checkpoints="none")
  assert (tmp_path / "copy" / "run.json").exists()


def test_a_process_removes_only_what_it_knows(store, folder, tmp_path):
  objects = of(store)
  objects.push(folder)
  (store / "run" / "notes.txt").write_text("of the user")
  save(folder, 3)
  objects.push(folder)
  assert (store / "run" / "notes.txt").exists()
  with pytest.raises(UsageError, match=r"contains other files, such as run/checkp.*, but no run"):
    ObjectStore(f"file://{store}").pull(tmp_path / "new")


def test_an_object_is_made_once(store):
  objects = of(store)
  assert objects.create(".owner", b"one") and not objects.create(".owner", b"two")
  assert objects.read(".owner") == b"one"
  objects.write(".owner", b"three")
  assert objects.read(".owner") == b"three"
  objects.remove(".owner")
  objects.remove(".owner")
  assert objects.read(".owner") == b""


# ---- Names --------------------------------------------------------------------------------------


def test_a_url_is_read_by_a_copy(store, folder, tmp_path, monkeypatch):
  monkeypatch.setattr(remote, "CACHE", tmp_path / "cache")
  url = f"file://{store / 'run'}"
  assert refusal(places.folder_of, url) == f"{url}: contains no run; give the workdir of a run"
  of(store).push(folder)
  copy = places.folder_of(url)
  assert copy == tmp_path.joinpath("cache", "file", *(store / "run").parts[1:])
  assert set(content(copy)) == {"run.json", "metrics.jsonl", "samples/step-00000001.png"}
  assert good_steps(places.folder_of(url, "newest")) == [2]
  save(folder, 2, "others")
  objects = of(store)
  objects.push(folder)
  places.folder_of(url)  # Whoever takes no checkpoint does not count it as taken.
  newest = places.folder_of(url, "newest") / "checkpoints" / "step-00000002"
  assert (newest / "variables.index").read_text() == "others"
  assert good_steps(places.folder_of(url, "all")) == [1, 2]
  assert places.folder_of("~/runs/digits") == pathlib.Path("~/runs/digits").expanduser()


def test_what_no_store_is_opened_for_is_one_line(monkeypatch):
  refused = functools.partial(refusal, places.folder_of)
  assert refused(pathlib.Path("s3://bucket/run")) == (
      "s3:/bucket/run: write s3://... as a string: a pathlib.Path loses a slash")
  assert refused("memory://run") == (
      "memory://run: would be lost when this process ends; use a folder, s3://... or gs://...")
  assert refused("nix://run").startswith("nix://run: cannot be opened (Protocol not known: nix")
  monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
  assert refused("gs://bucket/run") == (
      "gs://bucket/run: needs a package: pip install 'replicator[gs]'")
  with pytest.raises(UsageError, match=r"--out=s3:/bucket/grid.png: must be a local path"):
    places.refuse_url(pathlib.Path("s3://bucket/grid.png"), "--out", "choose a file")
  assert not os.path.exists("s3:")
