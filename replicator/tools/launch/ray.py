"""Runs agents in Ray tasks, each in a bundle of one placement group."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

from replicator.errors import UsageError, first_line
from replicator.tools import ray_cluster
from replicator.tools.launch.agents import FAREWELL_SECONDS, Agent, Agents

_WAIT_SECONDS = 600.0  # How long to wait for free CPUs and GPUs.


@contextlib.contextmanager
def connected(address: str) -> Iterator[Agents]:
  """Yields places on the cluster at an address such as 'host:6379' or 'auto', for the body.

  Raises a UsageError if Ray is missing, or there is no such cluster.
  """
  where = f"--ray={address}"
  if "://" in address:
    raise UsageError(f"{where}: the processes must reach the launcher, so start it on a machine of "
                     "the cluster with --ray=auto, or with 'ray job submit'")
  ray = ray_cluster.connect(where, address)
  try:
    yield Agents(ray.util.get_node_ip_address(), where, functools.partial(_started, ray))
  finally:
    ray.shutdown()


@contextlib.contextmanager
def _started(ray: Any, count: int, agent: Agent) -> Iterator[Callable[[], str]]:
  from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as In
  gpus = int(ray.cluster_resources().get("GPU", 0)) // count
  bundle = {"CPU": 1, **({"GPU": gpus} if gpus else {})}
  group = ray.util.placement_group([bundle] * count, "SPREAD")
  # A lost agent is not restarted, since that would restart its command too.
  task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(agent)
  tasks = [task.options(scheduling_strategy=In(group, i)).remote(i, {}) for i in range(count)]
  deadline = time.monotonic() + _WAIT_SECONDS

  def problem() -> str:
    for done in ray.wait(tasks, num_returns=count, timeout=0)[0]:
      try:
        ray.get(done)
      except ray.exceptions.RayError as error:
        return first_line(getattr(error, "cause", None) or error)
    if time.monotonic() > deadline:
      return f"no room for {count} processes with {bundle} each within {_WAIT_SECONDS:g} seconds"
    return ""

  try:
    yield problem
  finally:
    ray.wait(tasks, num_returns=count, timeout=FAREWELL_SECONDS)
    ray.util.remove_placement_group(group)
