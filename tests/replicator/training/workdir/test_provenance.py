"""The code of a run in `run.json`: the commit and the changes since."""

import os
import pathlib
import shutil
import subprocess
import sys
import types

from replicator.console import versions
from replicator.training.workdir import provenance

import pytest
import tensorflow as tf


def git(repository: pathlib.Path, *words: str) -> str:
  return subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e@x", *words], check=True,
                        cwd=repository, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path):
  """One commit of `step.py` and `notes.txt`."""
  git(tmp_path, "init", "-q")
  (tmp_path / "step.py").write_text("rate = 1\n")
  (tmp_path / "notes.txt").write_text("notes\n")
  git(tmp_path, "add", ".")
  git(tmp_path, "commit", "-qm", "one")
  provenance.code_of.cache_clear()
  yield tmp_path
  provenance.code_of.cache_clear()


def code_in(repository: pathlib.Path) -> provenance.Code:
  return provenance.code_of(str(repository / "step.py"))


def test_code_as_it_was_committed_is_its_commit(repository):
  assert code_in(repository) == provenance.Code(git(repository, "rev-parse", "HEAD"))


def test_the_commit_and_the_diff_make_the_code(repository, tmp_path_factory):
  for setting, value in (("diff.noprefix", "true"), ("color.ui", "always"),
                         ("diff.external", "true")):  # A user likes to read so.
    git(repository, "config", setting, value)
  (repository / "step.py").write_text("rate = 2\n")
  (repository / "notes.txt").write_bytes(b"\0not text")
  (repository / "new.py").write_text("new = 3\n")
  (repository / "data.bin").write_bytes(b"\0" * 100)  # Unknown to git, and not code.
  staged = git(repository, "status", "--porcelain")
  code = code_in(repository)
  assert (code.commit, code.note) == (git(repository, "rev-parse", "HEAD") + "+", None)
  assert git(repository, "status", "--porcelain") == staged  # Looking changed nothing.
  clone = tmp_path_factory.mktemp("clone")
  git(clone, "clone", "-q", str(repository), ".")
  (clone / "changes.diff").write_bytes(code.diff)
  git(clone, "apply", "changes.diff")
  assert (clone / "step.py").read_text() == "rate = 2\n"
  assert (clone / "notes.txt").read_bytes() == b"\0not text"
  assert (clone / "new.py").read_text() == "new = 3\n"
  assert not (clone / "data.bin").exists()


def test_a_change_in_the_second_of_the_commit_is_found(repository):
  git(repository, "config", "core.trustctime", "false")  # Nobody can set that time.
  then = (repository / "step.py").stat().st_mtime // 1 - 100

  def at_that_time(name: str) -> None:
    os.utime(repository / name, (then, then))

  at_that_time("step.py")
  git(repository, "add", "step.py")
  (repository / "step.py").write_text("rate = 2\n")  # As long as before.
  at_that_time("step.py")
  at_that_time(".git/index")
  assert b"+rate = 2" in code_in(repository).diff


def test_changes_that_are_too_large_are_noted_and_not_kept(repository, monkeypatch):
  monkeypatch.setattr(provenance, "MAX_DIFF", 50)
  (repository / "step.py").write_text("rate = 2\n")
  code = code_in(repository)
  assert code.diff == b"" and code.commit.endswith("+")
  assert code.note.endswith("bytes of changes, too many to keep")


def test_changes_that_git_cannot_list_are_noted(repository, tmp_path_factory, monkeypatch):
  folder = tmp_path_factory.mktemp("bin")
  (folder / "git").write_text(
      f'#!/bin/sh\ncase "$*" in *--binary*) exit 1;; esac\nexec {shutil.which("git")} "$@"\n')
  (folder / "git").chmod(0o755)
  monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
  code = code_in(repository)
  assert code.commit == git(repository, "rev-parse", "HEAD") + "+"
  assert (code.diff, code.note) == (b"", "git cannot list the changes: CalledProcessError")


def test_too_many_new_python_files_are_no_changes(repository, monkeypatch):
  monkeypatch.setattr(provenance, "_MAX_NEW", 0)
  (repository / "new.py").write_text("x = 1\n")
  assert code_in(repository).diff == b""


def test_a_program_of_another_repository_is_recorded_beside_this_library(repository, monkeypatch):
  def facts_of(file: str) -> dict:
    monkeypatch.setattr(sys.modules["__main__"], "__file__", file, raising=False)
    return provenance.of_this_process()

  found = facts_of(str(repository / "step.py"))
  assert found["git_commit"] == git(repository, "rev-parse", "HEAD")
  assert found["replicator_commit"] == provenance.code_of(provenance.__file__).commit
  assert facts_of(provenance.__file__)["replicator_commit"] is None
  for none in (None, "/nowhere/step.py"):
    assert provenance.code_of_program(none) == provenance.code_of(provenance.__file__)


def test_a_package_that_is_not_installed_has_no_version(monkeypatch):
  def version(name: str) -> str:
    if name == "replicator":
      raise versions.importlib.metadata.PackageNotFoundError(name)
    return "2.0"

  monkeypatch.setattr(versions.importlib.metadata, "version", version)
  found = versions.versions()
  assert (found["numpy"], found["replicator"]) == ("2.0", None)


def test_a_cluster_is_recorded_if_it_can_be_read(monkeypatch):
  for written, cluster in (("{", None), ("", None), ('{"a": 1}', {"a": 1})):
    monkeypatch.setenv("TF_CONFIG", written)
    assert provenance.of_this_process()["tf_config"] == cluster


def test_the_machine_is_what_this_process_may_use(monkeypatch):
  monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3, 5})
  text = "processor\t: 0\nmodel name\t: A: 9 @ 2 GHz\nmodel name\t: another\n"
  monkeypatch.setattr(pathlib.Path, "read_text", lambda path: text)
  devices = [tf.config.PhysicalDevice("a", kind) for kind in ("CPU", "GPU", "TPU")]
  monkeypatch.setattr(tf.config, "list_physical_devices", lambda: devices)
  monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda device: (
      {"device_name": "NVIDIA H200"} if device.device_type == "GPU" else {}))
  found = provenance.machine()
  assert (found["cores"], found["processor"]) == (3, "A: 9 @ 2 GHz")
  assert found["accelerators"] == ["NVIDIA H200", "TPU"]
  monkeypatch.setattr(pathlib.Path, "read_text", lambda path: "processor\t: 0\n")
  monkeypatch.setattr(provenance.platform, "processor", lambda: "")
  monkeypatch.setattr(provenance.platform, "machine", lambda: "aarch64")
  assert provenance.machine()["processor"] == "aarch64"


def test_outside_a_repository_or_without_git_there_is_no_commit(tmp_path, repository, monkeypatch):
  assert provenance.code_of("/nowhere/step.py") == provenance.Code()
  monkeypatch.setenv("PATH", str(tmp_path))
  assert code_in(repository) == provenance.Code()


def test_the_code_is_every_imported_file_of_the_user(tmp_path, monkeypatch):
  for folder in ("mine", "site-packages/own", "site-packages/foreign"):
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "part.py").write_text("width = 3\n")

  def imported(name: str, file: str) -> None:
    monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(
        __file__=str(tmp_path / file), __spec__=types.SimpleNamespace(name="own.program")))

  imported("part", "mine/part.py")
  imported("own.part", "site-packages/own/part.py")
  imported("foreign.part", "site-packages/foreign/part.py")
  imported("__main__", "mine/part.py")
  before = provenance.digests_of_code()
  assert before["part"] == before["own.part"] == before["own.program"]
  assert "replicator" in before and not {"foreign.part", "__main__", "numpy"} & before.keys()
  (tmp_path / "mine" / "part.py").write_text("width = 4\n")
  after = provenance.digests_of_code()
  assert {name for name in after if after[name] != before[name]} == {"part", "own.program"}
