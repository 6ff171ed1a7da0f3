"""The supervisor of an actor pool: it starts actors in processes, and replaces those that die."""

import concurrent.futures
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from models.rl.actor_pool.actor_process import LocalActor, Order, Setup
from models.rl.actor_pool.policy_graph import ExportedPolicy
from models.rl.actor_pool.ray_actor import RayActor
from models.rl.environments.environments import Environments
from replicator.errors import RunFailed

_MAX_DEATHS = 5  # Deaths of one actor without an answer in between.
_PATIENCE = 60.0  # Seconds without any answer before a warning.
PLACES: dict[str, Callable[[bytes], Any]] = {"local": LocalActor, "ray": RayActor}
"""Where actors can run: a class by the value of `ActorPool.where`."""


@dataclasses.dataclass
class Member:
  """One actor of a pool.

  Attributes:
    number: its number in the pool.
    process: a `LocalActor` or `RayActor`.
    running: the future of its start or of its order; None when it has nothing to do.
    version: the training step of the order's weights; None when it has no order.
    deaths: how often it died since its last answer.
  """

  number: int
  process: Any
  running: concurrent.futures.Future | None
  version: int | None = None
  deaths: int = 0


class Supervisor:
  """Starts the actors of a pool, and replaces those that die.

  Args:
    where: a key of `PLACES`.
    processes: how many actors.
    environments: the environments of each actor, not started.
    policy: the policy of all actors.
    seed: determines the seed of every actor.
    random_steps: environment steps at the start of the run whose actions are random.
    warn: called with one line when the actors send nothing for a long time.

  Attributes:
    members: the actors; none before `start_all`.
  """

  def __init__(self, where: str, processes: int, environments: Environments,
               policy: ExportedPolicy, seed: int, random_steps: int, warn: Callable[[str], None]):
    self._place, self._processes = PLACES[where], processes
    self._environments, self._policy = environments, policy
    self._seed, self._random_steps, self._warn = seed, random_steps, warn
    self.members: list[Member] = []

  def start_all(self, starts: int, environment_steps: int) -> None:
    """Starts all actors.

    Args:
      starts: how many actors were ever started before.
      environment_steps: steps of the run so far.
    """
    for number in range(self._processes):
      self.members.append(Member(number, *self._started(starts + number, environment_steps)))

  def replace(self, member: Member, error: Exception, starts: int, environment_steps: int) -> str:
    """Starts a new actor in place of one that died; returns why it died.

    Args:
      member: whose future raised an error.
      error: the error.
      starts: how many actors were ever started before.
      environment_steps: steps of the run so far.

    Raises:
      RunFailed: the actor died again and again.
    """
    why = member.process.cause_of_death(error)
    member.deaths += 1
    if member.deaths == _MAX_DEATHS:
      raise RunFailed(f"ActorPool: actor {member.number} died {_MAX_DEATHS} times without an "
                      f"answer in between; the last time: {why}")
    member.process, member.running = self._started(starts, environment_steps)
    return why

  def order(self, steps: int) -> Order:
    """An order of `steps` steps in each environment, with the present weights."""
    return Order(steps, pickle.dumps(self._policy.weights()))

  def wait(self) -> None:
    """Waits until an actor has answered, started or died, or until patience ends."""
    running = [member.running for member in self.members if member.running]
    done, _ = concurrent.futures.wait(running, _PATIENCE, concurrent.futures.FIRST_COMPLETED)
    if not done:
      self._warn(f"ActorPool: {len(running)} of {self._processes} actors sent nothing for "
                 f"{_PATIENCE:.0f} s; still waiting")

  def close(self) -> None:
    """Ends all actors."""
    for member in self.members:
      member.process.close()
    self.members.clear()

  def _started(self, starts: int, environment_steps: int
               ) -> tuple[Any, concurrent.futures.Future]:
    """The process of a new actor with a seed of its own, and the future of its start."""
    import cloudpickle  # Gymnasium depends on it.
    seed = np.random.SeedSequence([self._seed % 2**64, starts]).generate_state(1)
    random_steps = max(0, self._random_steps - environment_steps) // self._processes
    setup = Setup(self._environments, self._policy.graph, self._policy.weights(), int(seed[0]),
                  random_steps)
    process = self._place(cloudpickle.dumps(setup))
    return process, process.started
