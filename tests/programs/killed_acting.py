"""D4PG with actors in processes, all of which get SIGKILL at one moment of the run.

    python -m tests.programs.killed_acting WHERE NUMBER --gin_file=... --workdir=DIR ...

The moment is call number NUMBER of the actors' `collect`, or one in the saving of checkpoint number
NUMBER, which is `begun` or lacks only its manifest (`written`). Lines of JSON say what the learner
began with, what each checkpoint has, which are published, and which actors there were at the kill.
"""

import itertools
import json
import multiprocessing
import os
import pathlib
import signal
import sys

from experiments.d4pg import d4pg
from models.rl.actor_pool.pool import ActorPool
from models.rl.replay.timesteps import END
from replicator import app, atomic
from replicator.step import replicated
from replicator.training.checkpoints.saver import Saver

import numpy as np


def tell(**facts: object) -> None:
  """Prints a line of JSON, also while another thread does."""
  sys.stdout.write(f"{json.dumps(facts)}\n")
  sys.stdout.flush()


def content(pool: ActorPool) -> dict[str, int]:
  """Counts of what the actors did and of what the replay holds, which must agree."""
  replay = pool.replay
  written, flag, priority = (replicated.read(x) for x in (
      replay.written, replay.flag, replay.priorities.levels[0]))
  assert written.max() <= replay.stream_capacity
  held = np.arange(replay.stream_capacity) < written[:, np.newaxis]
  return {"environment_steps": int(pool.environment_steps), "timesteps": int(written.sum()),
          "ends": int((flag.reshape(held.shape)[held] == END).sum()), "size": replay.size(),
          "sampled": int((priority > 0).sum()), "drawn": int(replicated.read(replay.drawn))}


def die() -> None:
  """Kills this process and its actors."""
  tell(actors=[child.pid for child in multiprocessing.active_children()])
  os.killpg(0, signal.SIGKILL)


def hook(where: str, number: int) -> None:
  """Makes the process tell what it does, and die at the moment."""
  calls, saves, pools = itertools.count(1), itertools.count(1), []
  collect, publish, save = ActorPool.collect, atomic.publish, Saver.save

  def collect_or_die(pool: ActorPool, act, until: int, step: int) -> None:
    if not pools:
      pools.append(pool)
      tell(begins=step, **content(pool))
    if next(calls) == number and where == "collect":
      die()
    collect(pool, act, until, step)

  def save_and_tell(checkpoints: Saver, step: int, *arguments) -> None:
    if pools:
      tell(saves=step, **content(pools[0]))
    save(checkpoints, step, *arguments)

  def publish_or_die(folder: pathlib.Path, write, facts: dict) -> None:
    is_moment = next(saves) == number

    def write_or_die(temporary: pathlib.Path) -> None:
      if is_moment and where == "begun":
        die()
      write(temporary)
      if is_moment and where == "written":
        die()

    publish(folder, write_or_die, facts)
    tell(published=facts["step"])

  ActorPool.collect, Saver.save, atomic.publish = (
      collect_or_die, save_and_tell, publish_or_die)


if __name__ == "__main__":
  hook(sys.argv[1], int(sys.argv[2]))
  app.run(d4pg, sys.argv[3:])
