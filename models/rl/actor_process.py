"""An actor in a process of its own: what it is told, what it answers, and how it lives and dies.

Its policy and environments come as data, so it reads no gin file and none of the user's code, and
starts on its own: `multiprocessing` would run the experiment's file again.
"""

import collections
import concurrent.futures
import multiprocessing
import os
import pickle
import signal
import threading
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from models.rl import rendering
from models.rl.environments import Environments

if TYPE_CHECKING:
  from models.rl.replay import Rows


class Setup(NamedTuple):
  """What an actor needs to begin.

  Attributes:
    environments: k of them, not begun.
    graph: of the policy, see `exported_policy`.
    weights: its first ones.
    seed: of all that is random in it.
    random_steps: environment steps of uniformly random actions to begin with.
  """

  environments: Environments
  graph: tuple[bytes, list[str]]
  weights: list[np.ndarray]
  seed: int
  random_steps: int


class Order(NamedTuple):
  """Steps to make.

  Attributes:
    steps: how many, of each of its environments.
    weights: of the policy, pickled once for all actors: a list of arrays.
  """

  steps: int
  weights: bytes


class Answer(NamedTuple):
  """What became of an order.

  Attributes:
    rows: with the streams 0 to k - 1.
    environment_steps: of all its environments together.
    observation: `[k, *shape]`, present ones, which are in no row yet.
    episodes: how many were finished.
    returns: float64 [at most 10], of the last of them.
    warnings: one line each.
  """

  rows: "Rows"
  environment_steps: int
  observation: np.ndarray
  episodes: int
  returns: np.ndarray
  warnings: list[str]


class Worker:
  """Carries out orders; lives in the actor's process, which must not have imported TensorFlow.

  Args:
    setup: a pickled `Setup`.
  """

  def __init__(self, setup: bytes):
    # One core for each actor, and the accelerators for the learner.
    os.environ.update(CUDA_VISIBLE_DEVICES="-1", OMP_NUM_THREADS="1")
    from replicator.console import quiet
    quiet.import_tensorflow()
    import tensorflow as tf
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    from models.rl.acting import Actor
    from models.rl.exported_policy import imported
    with rendering.opengl(rendering.NOTHING):  # It may import MuJoCo.
      environments, graph, weights, seed, random_steps = pickle.loads(setup)
    if environments.vectorization == "sync":
      os.environ["MUJOCO_GL"] = rendering.NOTHING
    self._act, self._load = imported(graph, weights)
    self._inbox = _Inbox()
    self._warnings: list[str] = []
    self._actor = Actor(environments, self._inbox, None, seed, random_steps,  # type: ignore[arg-type]
                        self._warnings.append)

  def work(self, order: Order) -> Answer:
    """Makes the steps of an order."""
    self._load(pickle.loads(order.weights))
    actor = self._actor
    steps, episodes = int(actor.environment_steps), int(actor.episodes)
    actor.collect(self._act, steps + order.steps * actor.environments.number)
    finished = int(actor.episodes) - episodes
    # Not all that is kept, which has every action of the present episodes.
    observation, recent = (actor.kept.fields[name].numpy()
                           for name in ("observation", "recent_returns"))
    warnings, self._warnings[:] = list(self._warnings), []
    return Answer(self._inbox.rows.pop(), int(actor.environment_steps) - steps, observation,
                  finished, recent[max(0, len(recent) - finished):], warnings)


class _Inbox:
  """In place of the replay, which is elsewhere."""

  def __init__(self) -> None:
    self.rows: collections.deque[Rows] = collections.deque()

  def insert(self, rows: "Rows") -> None:
    self.rows.append(rows)


class LocalActor:
  """A `Worker` in a process of this machine, which ends with the one that made it.

  Args:
    setup: a pickled `Setup`.

  Attributes:
    started: is done when it takes orders.
  """

  DIED: tuple[type[Exception], ...] = (BrokenProcessPool,)

  def __init__(self, setup: bytes):
    self._executor = concurrent.futures.ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn"), initializer=_prepare)
    before = set(multiprocessing.active_children())
    # Ctrl-C and a scheduler's SIGTERM go to all processes; the learner's is the one that ends them.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    try:
      with rendering.main_module_hidden():
        self.started: concurrent.futures.Future = self._executor.submit(_start, setup)
    finally:
      signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    self._process, = set(multiprocessing.active_children()) - before

  def work(self, order: Order) -> concurrent.futures.Future:
    """Of the order's `Answer`; it raises one of `DIED` if the process is gone."""
    try:
      return self._executor.submit(_work, order)
    except BrokenProcessPool as error:
      failed: concurrent.futures.Future = concurrent.futures.Future()
      failed.set_exception(error)
      return failed

  def cause_of_death(self, error: Exception) -> str:
    """In words, after a future has raised one of `DIED`."""
    self._executor.shutdown()
    code = self._process.exitcode or 0
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"

  def close(self) -> None:
    """Ends the process at once."""
    self._process.kill()
    self._executor.shutdown(cancel_futures=True)


_worker: Worker | None = None


def _prepare() -> None:
  threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
  parent: Any = multiprocessing.parent_process()
  parent.join()
  os._exit(1)


def _start(setup: bytes) -> None:
  global _worker
  _worker = Worker(setup)


def _work(order: Order) -> Answer:
  assert _worker is not None
  return _worker.work(order)
