"""The fragile experiment without its bad example, to be stopped at one moment of its run.

    REACHED=DIR MOMENT=stepping python -m tests.programs.stopped_anywhere --workdir=DIR ...

At its `MOMENT`, each process that comes there leaves a file `DIR/worker-N`, and goes on when there
is a file `DIR/go`. The moments are 'building', 'evaluating', 'stepping', 'saving' and 'exiting'.
"""

import atexit
import json
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

from replicator import Evaluation, app, atomic, train
from tests.programs import fragile


def reach(moment: str) -> None:
  """Waits, if this is the moment to be stopped at."""
  if moment != os.environ["MOMENT"]:
    return
  folder = pathlib.Path(os.environ["REACHED"])
  (folder / f"worker-{json.loads(os.environ['TF_CONFIG'])['task']['index']}").touch()
  while not (folder / "go").exists():
    time.sleep(0.01)


def reaching(moment: str, function: Callable) -> Callable:
  """The function, which waits first."""
  def instead(*arguments: Any, **options: Any) -> Any:
    reach(moment)
    return function(*arguments, **options)
  return instead


class Stopped(fragile.Fragile):
  """Waits where it is built."""

  def __init__(self):
    reach("building")
    super().__init__()


def evaluate(step: Stopped) -> Evaluation:
  """Waits before the first step."""
  reach("evaluating")
  return Evaluation({})


def before_call(step: Stopped, number: int) -> None:
  """Waits in the middle of the training."""
  if number == 2:
    reach("stepping")


def main(workdir: str) -> None:
  """Trains."""
  fragile.BAD = -1.0  # No example is bad.
  atomic.publish = reaching("saving", atomic.publish)
  try:
    train(Stopped, fragile.numbers, evaluate, before_call, workdir=workdir)
  finally:
    atexit.register(reach, "exiting")  # Before TensorFlow ends.


if __name__ == "__main__":
  app.run(main)
