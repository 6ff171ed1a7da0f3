"""An actor in a process of its own: how it starts, takes orders, answers and ends.

An order is to take some steps with the weights that it brings: a list of arrays, pickled once for
all actors.

Its policy and environments come as data. It reads no gin file and none of the user's code. It has
its own way to start, because `multiprocessing` would run the experiment's file again.
"""

import concurrent.futures
import multiprocessing
import os
import pickle
import signal
import types
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, NamedTuple

from models.rl.acting.action_noise import Exploration
from models.rl.environments import rendering
from models.rl.environments.environments import Environments
from replicator.processes import end_with_parent, spawning
from replicator.tools import ray_cluster

import numpy as np

if TYPE_CHECKING:
  from models.rl.replay.timesteps import Timesteps


_OBJECT_BYTES = 200 * 2 ** 20  # For weights and timesteps. Ray's default is 30 % of the memory.


class Setup(NamedTuple):
  """The parts from which an actor starts."""

  environments: Environments  # k environments, not started.
  graph: tuple[bytes, list[str]]  # The policy's, see `policy_graph`.
  weights: list[np.ndarray]  # The policy's first ones.
  seed: int  # Determines all random numbers of the actor.
  exploration: Exploration  # In its environments.
  steps_per_order: int  # Steps of an order in each of the actor's environments.


class Answer(NamedTuple):
  """The result of an order."""

  timesteps: "Timesteps"  # What happened, with the streams 0 to k - 1.
  environment_steps: int  # All its environments together.
  observation: np.ndarray  # [k, *shape], the current observations, which are in no timestep yet.
  episodes: int  # How many finished.
  returns: np.ndarray  # float64 [at most 10], of the last of those episodes.
  warnings: list[str]  # One line each.


class RemoteActor:
  """Carries out orders, with a pickled `Setup`.

  It lives in the actor's process, which must not have loaded TensorFlow.
  """

  def __init__(self, setup: bytes):
    # Each actor gets one core; the accelerators are the learner's.
    os.environ.update(CUDA_VISIBLE_DEVICES="-1", OMP_NUM_THREADS="1")
    import tensorflow as tf
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    from models.rl.acting.actor import Actor
    from models.rl.actor_pool.policy_graph import imported
    with rendering.opengl(rendering.NOTHING):  # Unpickling may import MuJoCo.
      environments, graph, weights, seed, exploration, self._steps = pickle.loads(setup)
    if environments.vectorization == "sync":
      os.environ["MUJOCO_GL"] = rendering.NOTHING
    self._act, self._load = imported(graph, weights)
    self._timesteps: list[Timesteps] = []
    outbox = types.SimpleNamespace(insert=self._timesteps.append)  # The replay is the learner's.
    self._warnings: list[str] = []
    self._actor = Actor(environments, outbox, None, seed, exploration,  # type: ignore[arg-type]
                        self._warnings.append)

  def work(self, weights: bytes) -> Answer:
    """Takes the steps of an order."""
    self._load(pickle.loads(weights))
    actor = self._actor
    steps, episodes = int(actor.environment_steps), int(actor.episodes)
    actor.collect(self._act, steps + self._steps * actor.environments.number)
    finished = int(actor.episodes) - episodes
    # Only two fields: the whole state has every action of the current episodes.
    observation, recent = (actor.kept.fields[name].numpy()
                           for name in ("observation", "recent_returns"))
    warnings, self._warnings[:] = list(self._warnings), []
    return Answer(self._timesteps.pop(), int(actor.environment_steps) - steps, observation,
                  finished, recent[max(0, len(recent) - finished):], warnings)


class LocalActor:
  """A `RemoteActor` in a process of this machine, which ends with the process that made it.

  Attributes:
    started: a future, done when the actor takes orders.
    DIED: the errors that a future raises when the process is gone.
  """

  DIED: tuple[type[Exception], ...] = (BrokenProcessPool,)

  def __init__(self, setup: bytes):
    self._executor = concurrent.futures.ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn"), end_with_parent())
    before = set(multiprocessing.active_children())
    # A scheduler's SIGTERM reaches all processes. The learner ends its actors itself.
    with spawning(signal.SIGINT, signal.SIGTERM):
      self.started: concurrent.futures.Future = self._executor.submit(_start, setup)
    self._process, = set(multiprocessing.active_children()) - before

  def work(self, weights: bytes) -> concurrent.futures.Future:
    """The future of the order's `Answer`. It raises one of `DIED` if the process is gone."""
    try:
      return self._executor.submit(_work, weights)
    except BrokenProcessPool as error:
      failed: concurrent.futures.Future = concurrent.futures.Future()
      failed.set_exception(error)
      return failed

  def cause_of_death(self, error: Exception) -> str:
    """Says why the process is gone, after a future raised one of `DIED`."""
    self._executor.shutdown()
    code = self._process.exitcode or 0
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"

  def close(self) -> None:
    """Kills the process."""
    self._process.kill()
    self._executor.shutdown(cancel_futures=True)


class RayActor:
  """A `RemoteActor` where Ray has room for it, on one core. It ends with the learner.

  Its methods and attributes are those of `LocalActor`. Raises a UsageError if Ray is not installed,
  or the cluster cannot be reached.
  """

  def __init__(self, setup: bytes):
    ray = ray_cluster.connect("ActorPool.where = 'ray'", object_store_memory=_OBJECT_BYTES)
    self.DIED: tuple[type[Exception], ...] = (ray.exceptions.RayActorError,)
    self._ray = ray
    # One machine may have more actors than cores, as with local processes.
    cores = 1 if ray_cluster.address() else 0
    self._actor = ray.remote(num_cpus=cores)(RemoteActor).remote(setup)
    self.started: concurrent.futures.Future = self._actor.__ray_ready__.remote().future()

  def work(self, weights: bytes) -> concurrent.futures.Future:
    """See `LocalActor`."""
    return self._actor.work.remote(weights).future()

  def cause_of_death(self, error: Exception) -> str:
    """See `LocalActor`."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # If the actor could not start, the last line of a traceback has the cause.
    return lines[-1 if "creation task" in lines[0] else 0].rstrip(".")[:200]

  def close(self) -> None:
    """Kills the actor."""
    self._ray.kill(self._actor)


_remote_actor: RemoteActor | None = None


def _start(setup: bytes) -> None:
  global _remote_actor
  _remote_actor = RemoteActor(setup)


def _work(weights: bytes) -> Answer:
  assert _remote_actor is not None
  return _remote_actor.work(weights)
