"""Finds random draws and counters in Python, which become constants when a step is traced."""

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
def noted_in(found: list[str], step: Any, traced: str = "the step", every: str = "at every step",
             remedy: str = "draw with replicator.random") -> Iterator[None]:
  """Adds a warning to `found` for each Python draw and counter while the body traces a step.

  `traced` names what is traced, which may also be a method of `step`; `every` says how often it
  runs, and `remedy` what to do about draws.
  """
  with (sums_noted_in(found, step, traced, every),
        draws_noted_in(found, step, traced, remedy)):
    yield


@contextlib.contextmanager
def draws_noted_in(found: list[str], step: Any, traced: str = "the step",
                   remedy: str = "draw with replicator.random") -> Iterator[None]:
  """Adds a warning to `found` for each generator that the body draws from as it traces a step.

  Checks the global generators of NumPy and Python, which other threads may also use, and the
  generators that the step holds.
  """
  states = lambda: generators_of(dict(held_by(step, _GENERATORS)))
  before, of_keras = states(), global_seed_state()
  yield
  drawn = changed(before, states())
  if global_seed_state() is not of_keras:  # Keras has drawn its seed.
    drawn.remove("Python's random")
  lines = [f"{name} was called while {traced} was traced, so its numbers are constants; {remedy}"
           for name in drawn]
  found += [line for line in lines if line not in found]


@contextlib.contextmanager
def sums_noted_in(found: list[str], step: Any, traced: str = "the step",
                  every: str = "at every step") -> Iterator[None]:
  """Adds a warning to `found` for each numeric attribute that the body changes."""
  before = numbers_of(step)
  yield
  after = {path: value for path, value in numbers_of(step).items() if path in before}
  lines = [f"the attribute '{path}' changed from {before[path]} to {after[path]} while {traced} "
           f"was traced, which happens once, not {every}; if it is a counter, keep it in a "
           "tf.Variable"
           for path in changed(before, after)]
  found += [line for line in lines if line not in found]


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
  """Returns the keys of `after` that are new or whose value has changed."""
  return [key for key, value in after.items()
          if value is not before.get(key) and value != before.get(key)]


def generators_of(attributes: Mapping[str, Any]) -> dict[str, bytes]:
  """Returns the states of the global generators and of those among `attributes`, by name."""
  states = {"np.random": np.random.get_state(), "Python's random": random.getstate(),
            **{f"the generator '{path}'": value for path, value in attributes.items()
               if isinstance(value, _GENERATORS) and not isinstance(value, random.SystemRandom)}}
  return {name: pickle.dumps(state) for name, state in states.items()}


def numbers_of(step: Callable) -> dict[str, float]:
  """Returns the attributes of a step that are Python numbers, by path."""
  return {path: value for path, value in held_by(step, (int, float))
          if not isinstance(value, bool)}


def outdated(traced: Mapping[str, float], step: Callable) -> list[str]:
  """Returns warnings about the step's own numbers that have changed since it was traced.

  Skips numbers of objects inside it, such as a replay buffer: they may be for acting only.
  """
  own = children_of(step) or {}
  now = {path: own[path] for path in traced if path in own}
  return [f"the attribute '{path}' was {traced[path]} when the step was compiled, which still uses "
          f"that, and is {now[path]} now, which no checkpoint contains; keep it in a tf.Variable"
          for path in changed(traced, now)]
