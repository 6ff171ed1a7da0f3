"""An actor in a separate process: how it starts, takes orders, answers and ends.

An order requests some steps with new weights, a list of arrays that is pickled once for all actors.

The policy and environments are sent as data. The process reads neither gin files nor the
experiment's code. It has its own way to start, because `multiprocessing` would run the experiment's
file again.
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
  """The data from which an actor starts."""

  environments: Environments  # k environments, not started.
  graph: tuple[bytes, list[str]]  # The policy's, see `policy_graph`.
  weights: list[np.ndarray]  # The policy's initial weights.
  seed: int  # Determines all random numbers of the actor.
  exploration: Exploration  # In its environments.
  steps_per_order: int  # Steps of an order in each of the actor's environments.


class Answer(NamedTuple):
  """The result of an order."""

  timesteps: "Timesteps"  # What happened, with the streams 0 to k - 1.
  environment_steps: int  # Total of its environments, in simulator frames.
  observation: np.ndarray  # [k, *shape], the current observations, not yet in timesteps.
  episodes: int  # The number of finished episodes.
  returns: np.ndarray  # float64 [at most 10], of the last of those episodes.
  warnings: list[str]  # One line each.


class RemoteActor:
  """An actor that carries out orders, made from a pickled `Setup`.

  It runs in the actor's process, which must not have loaded TensorFlow before.
  """

  def __init__(self, setup: bytes):
    # Each actor gets one core; the accelerators belong to the learner.
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
    outbox = types.SimpleNamespace(insert=self._timesteps.append)  # The learner has the replay.
    self._warnings: list[str] = []
    self._actor = Actor(environments, outbox, None, seed, exploration,  # type: ignore[arg-type]
                        self._warnings.append)

  def work(self, weights: bytes) -> Answer:
    """Takes the steps of an order."""
    self._load(pickle.loads(weights))
    actor = self._actor
    steps, episodes = int(actor.environment_steps), int(actor.episodes)
    environments = actor.environments
    actor.collect(self._act,
                  steps + self._steps * environments.number * environments.frames_per_step)
    finished = int(actor.episodes) - episodes
    # Only two fields, because the whole state has every action of the current episodes.
    observation, recent = (actor.kept.fields[name].numpy()
                           for name in ("observation", "recent_returns"))
    warnings, self._warnings[:] = list(self._warnings), []
    return Answer(self._timesteps.pop(), int(actor.environment_steps) - steps, observation,
                  finished, recent[max(0, len(recent) - finished):], warnings)


class LocalActor:
  """A `RemoteActor` in a process on this machine, which ends with its parent process.

  Attributes:
    started: a future that completes when the actor is ready for orders.
    DIED: the errors that a future raises if the process has died.
  """

  DIED: tuple[type[Exception], ...] = (BrokenProcessPool,)

  def __init__(self, setup: bytes):
    self._executor = concurrent.futures.ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn"), end_with_parent())
    before = set(multiprocessing.active_children())
    # A scheduler sends SIGTERM to all processes, but the learner ends its actors itself.
    with spawning(signal.SIGINT, signal.SIGTERM):
      self.started: concurrent.futures.Future = self._executor.submit(_start, setup)
    self._process, = set(multiprocessing.active_children()) - before

  def work(self, weights: bytes) -> concurrent.futures.Future:
    """Returns a future of the order's `Answer`. It raises one of `DIED` if the process died."""
    try:
      return self._executor.submit(_work, weights)
    except BrokenProcessPool as error:
      failed: concurrent.futures.Future = concurrent.futures.Future()
      failed.set_exception(error)
      return failed

  def cause_of_death(self, error: Exception) -> str:
    """Returns why the process died, after a future raised one of `DIED`."""
    self._executor.shutdown()
    code = self._process.exitcode or 0
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"

  def close(self) -> None:
    """Kills the process."""
    self._process.kill()
    self._executor.shutdown(cancel_futures=True)


class RayActor:
  """A `RemoteActor` that Ray places, on one core. It ends with the learner.

  It has the methods and attributes of `LocalActor`. Raises a UsageError if Ray is not installed, or
  the cluster cannot be reached.
  """

  def __init__(self, setup: bytes):
    ray = ray_cluster.connect("ActorPool.where = 'ray'", object_store_memory=_OBJECT_BYTES)
    self.DIED: tuple[type[Exception], ...] = (ray.exceptions.RayActorError,)
    self._ray = ray
    # A single machine may have more actors than cores, as with local processes.
    cores = 1 if ray_cluster.address() else 0
    self._actor = ray.remote(num_cpus=cores)(RemoteActor).remote(setup)
    self.started: concurrent.futures.Future = self._actor.__ray_ready__.remote().future()

  def work(self, weights: bytes) -> concurrent.futures.Future:
    """See `LocalActor`."""
    return self._actor.work.remote(weights).future()

  def cause_of_death(self, error: Exception) -> str:
    """See `LocalActor`."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # If the actor could not start, the cause is in the last line of a traceback.
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
