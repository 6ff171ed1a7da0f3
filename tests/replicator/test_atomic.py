"""A published folder is whole, the old or the new one, whenever the process is killed."""

import pathlib
import signal
import subprocess
import sys

import pytest

from replicator import atomic

# Publishes 'new' over 'old', and kills itself before the n-th operation on the file system.
PROGRAM = """
import os, pathlib, signal, sys
from replicator import atomic

parent, left = pathlib.Path(sys.argv[1]), int(sys.argv[2])

def killing(operation):
  def instead(*arguments, **options):
    global left
    left -= 1
    if left == 0:
      os.kill(os.getpid(), signal.SIGKILL)
    return operation(*arguments, **options)
  return instead

def write(folder):
  for name in ("a", "b"):
    (folder / name).write_text("new")

for owner, name in ((os, "fsync"), (pathlib.Path, "rename"), (pathlib.Path, "mkdir"),
                    (pathlib.Path, "write_text"), (os, "unlink"), (os, "rmdir")):
  setattr(owner, name, killing(getattr(owner, name)))
atomic.publish(parent / sys.argv[3], write, {"value": "new"})
"""


def publish(folder: pathlib.Path, value: str) -> None:
  def write(temporary):
    (temporary / "a").write_text(value)
  atomic.publish(folder, write, {"value": value})


@pytest.mark.parametrize("name", ["another", "the same"])
def test_a_kill_at_any_moment_leaves_whole_folders(name, tmp_path):
  survived = set()
  for moment in range(1, 40):
    parent = tmp_path / str(moment)
    publish(parent / "the same", "old")
    publish(parent / "earlier", "old")
    done = subprocess.run([sys.executable, "-c", PROGRAM, parent, str(moment), name], timeout=300)
    assert done.returncode in (0, -signal.SIGKILL)
    atomic.clean(parent)
    whole = {folder.name: atomic.check(folder)["value"] for folder in parent.iterdir()}
    assert whole.pop("earlier") == "old"
    survived.add(tuple(sorted(whole.items())))
    if done.returncode == 0:
      break
  assert moment > 8
  if name == "another":
    assert survived == {(("the same", "old"),), (("another", "new"), ("the same", "old"))}
  else:  # In between there is neither: a checkpoint is replaced when it is good for nothing.
    assert survived == {(("the same", "old"),), (), (("the same", "new"),)}
