"""An actor on a cluster of Ray: the one that RAY_ADDRESS names, or a local one."""

import concurrent.futures

from models.rl.actor_process import Order, Worker
from replicator import ray_cluster

_OBJECT_BYTES = 200 * 2 ** 20  # Weights and rows pass through it; Ray would take 30 %.


class RayActor:
  """A `Worker` where Ray finds room for it; one core each. It ends with the learner.

  Args:
    setup: a pickled `actor_process.Setup`.

  Attributes:
    started: is done when it takes orders.
    DIED: what a future raises when the actor is gone.

  Raises:
    UsageError: Ray is not installed, or the cluster is not there.
  """

  def __init__(self, setup: bytes):
    ray = ray_cluster.connect("ActorPool.where = 'ray'", object_store_memory=_OBJECT_BYTES)
    self.DIED: tuple[type[Exception], ...] = (ray.exceptions.RayActorError,)
    self._ray = ray
    # On one machine there may be more actors than cores, as with processes.
    cores = 1 if ray_cluster.address() else 0
    self._actor = ray.remote(num_cpus=cores)(Worker).remote(setup)
    self.started: concurrent.futures.Future = self._actor.__ray_ready__.remote().future()

  def work(self, order: Order) -> concurrent.futures.Future:
    """Of the order's `Answer`; it raises one of `DIED` if the actor is gone."""
    return self._actor.work.remote(order).future()

  def cause_of_death(self, error: Exception) -> str:
    """In words, after a future has raised one of `DIED`."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # If it could not start, the last line of a traceback says why.
    return lines[-1 if "creation task" in lines[0] else 0].rstrip(".")[:200]

  def close(self) -> None:
    """Ends the actor at once."""
    self._ray.kill(self._actor)
