"""Draws and sums in Python while a step is traced: its graph keeps them as constants."""

import contextlib
import pickle
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from replicator.internals.keras_internals import global_seed_state
from replicator.step.variables import children_of, held_by

import numpy as np

_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)


@contextlib.contextmanager
def noted_in(found: list[str], step: Callable) -> Iterator[None]:
  """Adds to `found` a line on each draw and each sum of the body in Python, where it traces a step.
  """
  with sums_noted_in(found, step), draws_noted_in(found, step):
    yield


@contextlib.contextmanager
def draws_noted_in(found: list[str], step: Callable) -> Iterator[None]:
  """Adds to `found` a line on each generator of which the body draws, where it traces a step.

  They are the global ones of NumPy and Python, of which other threads may draw too, and those that
  the step holds.
  """
  states = lambda: generators_of(dict(held_by(step, _GENERATORS)))
  before, of_keras = states(), global_seed_state()
  yield
  drawn = changed(before, states())
  if global_seed_state() is not of_keras:  # Keras draws its seed.
    drawn.remove("Python's random")
  lines = [f"{name} was called while the step was traced: its numbers are constants; draw with "
           "replicator.random" for name in drawn]
  found += [line for line in lines if line not in found]


@contextlib.contextmanager
def sums_noted_in(found: list[str], step: Callable) -> Iterator[None]:
  """Adds to `found` a line on each attribute that is a number, which the body changes."""
  before = numbers_of(step)
  yield
  after = {path: value for path, value in numbers_of(step).items() if path in before}
  lines = [f"the attribute '{path}' changed from {before[path]} to {after[path]} while the step "
           "was traced, which is done once, not at every step; if it counts steps, keep it in a "
           "tf.Variable" for path in changed(before, after)]
  found += [line for line in lines if line not in found]


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
  """The keys of what is there after, and was not there before or not the same."""
  return [key for key, value in after.items()
          if value is not before.get(key) and value != before.get(key)]


def generators_of(attributes: Mapping[str, Any]) -> dict[str, bytes]:
  """The states of the global generators, and of those among some attributes, by name."""
  states = {"np.random": np.random.get_state(), "Python's random": random.getstate(),
            **{f"the generator '{path}'": value for path, value in attributes.items()
               if isinstance(value, _GENERATORS) and not isinstance(value, random.SystemRandom)}}
  return {name: pickle.dumps(state) for name, state in states.items()}


def numbers_of(step: Callable) -> dict[str, float]:
  """The attributes of a step that are numbers of Python, by path."""
  return {path: value for path, value in held_by(step, (int, float))
          if not isinstance(value, bool)}


def outdated(traced: Mapping[str, float], step: Callable) -> list[str]:
  """Lines about numbers of the step itself that are others now than when it was traced.

  Those of the objects that it holds, such as a replay, may be for acting alone.
  """
  own = children_of(step) or {}
  now = {path: own[path] for path in traced if path in own}
  return [f"the attribute '{path}' was {traced[path]} when the step was compiled, which keeps it, "
          f"and is {now[path]} now, which is in no checkpoint; keep it in a tf.Variable"
          for path in changed(traced, now)]
