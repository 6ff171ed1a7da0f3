"""An experiment whose process is killed at moments of its pushes, and started again.

    python -m tests.programs.killed_pushing KILLS SEED FOLDER --workdir=URL ...

Each start is a process of its own, a fork made before TensorFlow computes anything, with a new
folder for temporary files, as on another machine. After so many writes to the store, which the seed
chooses, it gets SIGKILL: every second time when a checkpoint lacks only its manifest, else some
milliseconds later, which the seed chooses, too. After each kill the folder `FOLDER/N` gets a
copy of what is in the store. The last start is not killed.
"""

import os
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time

import replicator
from replicator import app
from replicator.tools.storage.object_store import ObjectStore
from replicator.training.workdir import claim
from tests.programs import fragile

import fsspec
import gin
import tensorflow as tf

MOST_WRITES = 10  # A push or two: a write may be of several files.


@gin.configurable
class Heavy(fragile.Fragile):
  """A fragile step with enough in it that a push takes a while."""

  def __init__(self):
    super().__init__()
    self.ballast = tf.Variable(tf.zeros([300_000]))

  def __call__(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    draws = replicator.random.normal("ballast", [batch["x"].shape[0], 300_000])
    self.ballast.assign_add(tf.reduce_mean(draws, axis=0))
    return {**super().__call__(batch), "ballast": tf.reduce_sum(self.ballast)}


def main(workdir: str) -> None:
  """Trains."""
  fragile.BAD = -1.0  # No example is bad.
  replicator.train(Heavy, fragile.numbers, workdir=workdir)


def kill_after(writes: int, seconds: float | None) -> None:
  """Kills this process so many seconds after it begins a write; None: before the next manifest."""
  begun = iter(range(10 ** 6))

  def counted(method):
    def call(self, *arguments):
      number = next(begun)
      names = [arguments[0]] if isinstance(arguments[0], str) else arguments[0]
      if seconds is None and number >= writes and method.__name__ == "_put" and any(
          name.endswith("manifest.json") for name in names):
        os.kill(os.getpid(), signal.SIGKILL)
      if seconds is not None and number == writes:
        threading.Thread(target=lambda: (time.sleep(seconds), os.kill(os.getpid(), signal.SIGKILL))
                         ).start()
      return method(self, *arguments)
    return call

  ObjectStore._put, ObjectStore.remove = counted(ObjectStore._put), counted(ObjectStore.remove)


def started(flags: list[str], folder: pathlib.Path, kill: tuple[int, float | None] | None) -> int:
  """Runs the experiment in a process of its own; returns its exit status, or minus a signal."""
  child = os.fork()
  if child:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
  tempfile.tempdir = str(folder)
  claim._CLAIM_SECONDS = 0.1
  if kill:
    kill_after(*kill)
  app.run(main, flags)


def run(kills: int, seed: int, folder: pathlib.Path, flags: list[str]) -> None:
  """Starts the experiment until it is done."""
  draw = random.Random(seed)
  url = next(flag for flag in flags if flag.startswith("--workdir=")).partition("=")[2]
  if "://" in url:
    fsspec.get_filesystem_class(url.partition(":")[0])  # Imports it, once for all starts.
  for number in range(kills):
    here, copy = folder / f"machine-{number}", folder / str(number)
    here.mkdir()
    moment = draw.randint(1, MOST_WRITES), draw.uniform(0.0, 0.015) if number % 2 else None
    status = started(flags, here, moment)
    assert status == -signal.SIGKILL, f"start {number} ended with {status}"
    copy.mkdir()
    if not os.fork():  # What a file system has begun in one process does not survive a fork.
      store = ObjectStore(url)
      store.pull(copy)
      torn = {name.rpartition("/")[0] for name in store._there if name.startswith("checkpoints/")
              and f"{name.rpartition('/')[0]}/manifest.json" not in store._there}
      print(f"killed at write {moment[0]}: torn {len(torn)}", flush=True)
      os._exit(0)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
  (folder / "last").mkdir()
  assert started(flags, folder / "last", None) == 0


if __name__ == "__main__":
  run(int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3]), sys.argv[4:])
