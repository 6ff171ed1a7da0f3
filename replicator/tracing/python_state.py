"""Draws and sums in Python while a step is traced: its graph keeps them as constants."""

import contextlib
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from replicator.step.variables import held_by


@contextlib.contextmanager
def noted_in(found: list[str], step: Callable) -> Iterator[None]:
  """Adds to `found` a line on each generator or number that the body, which traces a step, changes.

  The generators are the global ones of NumPy and Python, of which other threads may draw too, and
  those that the step holds; the numbers are its attributes.
  """
  generators, numbers = generators_of(step), _numbers(step)
  yield
  lines = [*(f"{name} was called while the step was traced: its numbers are constants; draw with "
             "replicator.random" for name in changed(generators, generators_of(step))),
           *(f"the attribute '{path}' was changed while the step was traced, which is done once, "
             "not at every step; keep it in a tf.Variable"
             for path in changed(numbers, _numbers(step)))]
  found += [line for line in lines if line not in found]


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
  """The keys of what is there before and after, and is not the same."""
  return [key for key, value in after.items()
          if key in before and value is not before[key] and value != before[key]]


def generators_of(holder: Any) -> dict[str, bytes]:
  """The states of the global generators, and of those that an object holds, by name."""
  held = held_by(holder, (np.random.Generator, np.random.RandomState, random.Random))
  states = {"np.random": np.random.get_state(), "Python's random": random.getstate(),
            **{f"the generator '{path}'": generator for path, generator in held}}
  return {name: pickle.dumps(state) for name, state in states.items()}


def _numbers(step: Callable) -> dict[str, float]:
  return {path: value for path, value in held_by(step, (int, float)) if not isinstance(value, bool)}
