"""The fragile experiment, whose chief writes a checkpoint only after a step has diverged.

The chief holds back the checkpoint of step 4 until worker 1 has left its part of the batch of step
6, and then until worker 1 restores a checkpoint. Worker 1 must not: it has to wait for the chief,
which therefore gives up after some seconds.

    python -m replicator.launch --workers=2 -- python -m tests.programs.slow_writer --workdir=DIR
"""

import pathlib
import time
from collections.abc import Callable

from replicator import app, atomic, train
from replicator.checkpoints.checkpoint import Checkpoints
from tests.programs.fragile import Fragile, numbers

PATIENCE = 3.0  # Seconds.


def main(workdir: str) -> None:
  """Trains."""
  folder = pathlib.Path(workdir)
  restoring, publish, restore = folder / "restoring", atomic.publish, Checkpoints.restore

  def late_publish(path: pathlib.Path, *arguments) -> None:
    if path.name == "step-00000004":
      wait_for((folder / "failures" / "step-00000006" / "batch-worker-1.npz").exists, 100.0)
      wait_for(restoring.exists, PATIENCE)
    publish(path, *arguments)

  def watched_restore(checkpoints: Checkpoints) -> dict | None:
    if (folder / "failures").exists() and not checkpoints._writes:
      restoring.touch()
    return restore(checkpoints)

  atomic.publish, Checkpoints.restore = late_publish, watched_restore
  train(Fragile, numbers, workdir=workdir)


def wait_for(happened: Callable[[], bool], seconds: float) -> None:
  """Returns when `happened()`, or after some seconds."""
  end = time.monotonic() + seconds
  while not happened() and time.monotonic() < end:
    time.sleep(0.02)


if __name__ == "__main__":
  app.run(main)
