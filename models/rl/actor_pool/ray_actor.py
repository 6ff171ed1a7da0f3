"""An actor on a cluster of Ray: the cluster that RAY_ADDRESS names, or a local one."""

import concurrent.futures

from models.rl.actor_pool.actor_process import RemoteActor
from replicator import ray_cluster

_OBJECT_BYTES = 200 * 2 ** 20  # For weights and timesteps. Ray's default is 30 % of the memory.


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
