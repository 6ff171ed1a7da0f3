"""The fragile experiment without its bad example, which is asked to stop at one moment of its run.

    MOMENT=stepping ASKED=01 python -m tests.programs.stopped_anywhere --workdir=DIR ...

At its `MOMENT`, each worker whose number is in `ASKED` sends itself SIGTERM twice. The moments are
'building', 'evaluating', 'stepping', 'saving' and 'exiting'.
"""

import atexit
import itertools
import json
import os
import pathlib
import signal

from replicator import Evaluation, app, atomic, train
from tests.programs import fragile

calls = itertools.count()


def reach(moment: str) -> None:
  """Asks this process to stop, if this is the moment."""
  worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
  if moment == os.environ["MOMENT"] and str(worker) in os.environ["ASKED"]:
    for _ in range(2):
      os.kill(os.getpid(), signal.SIGTERM)


def make_step() -> fragile.Fragile:
  reach("building")
  return fragile.Fragile()


def evaluate(step: fragile.Fragile) -> Evaluation:
  reach("evaluating")
  return Evaluation({})


def before_call(step: fragile.Fragile, number: int) -> None:
  if next(calls) == 2:
    reach("stepping")


def main(workdir: str) -> None:
  """Trains."""
  fragile.BAD = -1.0  # No example is bad.
  publish = atomic.publish

  def reach_and_publish(folder: pathlib.Path, *arguments) -> None:
    reach("saving")
    publish(folder, *arguments)

  atomic.publish = reach_and_publish
  try:
    train(make_step, fragile.numbers, evaluate, before_call, workdir=workdir)
  finally:
    atexit.register(reach, "exiting")  # Before TensorFlow ends.


if __name__ == "__main__":
  app.run(main)
