"""Checks that an episode is a function of its seed and actions, as exact resume requires."""

import contextlib
import random
from collections.abc import Iterator

from models.rl.environments.environments import Environments
from models.rl.environments.vector import EnvironmentsLost

import numpy as np

_STEPS = 3


def doubt(environments: Environments) -> str:
  """Plays the first steps of some episodes twice; returns a warning if they differ, else ''.

  The environments must be reset afterwards. Failures are not reported here, but when acting.
  """
  try:
    with generators_kept():
      first, second = _played(environments), _played(environments)
  except EnvironmentsLost:
    return ""
  for number, (found, again) in enumerate(zip(first, second, strict=False)):
    if found != again:
      where = f"after {number} steps" if number else "at their first observation"
      return (f"warning: {environments.name}: two episodes with the same seed and actions differ "
              f"{where}, so a run is not reproducible, does not resume exactly, and does not "
              "evaluate on the same episodes; draw from the environment's own np_random, which "
              "reset(seed=seed) seeds, and not from NumPy's or Python's global generator; or if an "
              "episode depends on the one before, add the wrapper "
              "'models.rl.environments.fresh_episodes:FreshEpisodes'")
  return ""


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
  """Restores the global generators of NumPy and Python after the body.

  So evaluations in this process do not affect training environments that draw from them.
  """
  of_numpy, of_python = np.random.get_state(), random.getstate()
  try:
    yield
  finally:
    np.random.set_state(of_numpy)
    random.setstate(of_python)


def _played(environments: Environments) -> list[bytes]:
  """Returns the contents of the first steps of episodes with fixed seeds and actions."""
  n = environments.number
  observation, failures = environments.reset({i: i for i in range(n)})
  seen = [observation.tobytes()]
  draw = np.random.default_rng(0)
  is_over = bool(failures)
  while not is_over and len(seen) <= _STEPS:
    outcome = environments.step(
        draw.uniform(-1, 1, [n, environments.action_size]).astype(np.float32))
    seen.append(outcome.observation.tobytes() + outcome.reward.tobytes())
    is_over = bool(outcome.failures) or bool((outcome.terminated | outcome.truncated).any())
  return [] if failures else seen
