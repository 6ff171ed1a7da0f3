"""Draws from generators of Python and NumPy in a step: in its graph their numbers are constants."""

import contextlib
import pickle
import random
from collections.abc import Callable, Iterator

import numpy as np

from replicator.step.variables import held_by


@contextlib.contextmanager
def noted_in(found: list[str], step: Callable) -> Iterator[None]:
  """Adds to `found` the generators that the body draws from, in which the step is traced.

  They are the global ones of NumPy and Python, of which other threads may draw too, and those that
  the step holds.
  """
  before = _states(step)
  yield
  found += [name for name, state in _states(step).items()
            if name not in found and state != before.get(name)]


def remark(name: str) -> str:
  """A line on a generator that was found."""
  return (f"{name} was called while the step was traced: its numbers are constants; draw with "
          "replicator.random")


def _states(step: Callable) -> dict[str, bytes]:
  held = held_by(step, (np.random.Generator, np.random.RandomState, random.Random))
  states = {"np.random": np.random.get_state(), "Python's random": random.getstate(),
            **{f"the generator '{path}'": generator for path, generator in held}}
  return {name: pickle.dumps(state) for name, state in states.items()}
