"""The learner's records of a pool's actors."""

import concurrent.futures
import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass
class Member:
  """One actor of a pool."""

  number: int  # In the pool.
  process: Any  # A `LocalActor` or `RayActor`.
  running: concurrent.futures.Future | None  # Its start or its order; None if it is idle.
  version: int | None = None  # The training step of the order's weights; None without an order.
  deaths: int = 0  # Since its last answer.


@dataclasses.dataclass
class PoolState:
  """The state of a pool that acts in n environments."""

  environment_steps: int  # Total of all environments, in simulator frames.
  episodes: int  # The number of finished episodes.
  recent_returns: np.ndarray  # float64 [10], of the last finished episodes, the newest last.
  starts: int  # The number of actors started so far.
  deaths: int  # The number of actors that died.
  policy_age: int  # See `ActorPool`.
  observation: np.ndarray  # [n, *shape], the current observations, not yet in the replay.
  is_open: np.ndarray  # bool [n], whether the episode of a stream has no END timestep yet.
