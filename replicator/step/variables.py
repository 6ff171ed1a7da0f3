"""Which variables a step holds: what is saved, restored, and compared between runs.

Walks the attributes of `tf.Module`s, the closure and globals of plain functions, and the
lists, tuples and dicts among them. TensorFlow's own object graph is not used for Keras objects:
it silently misses layers that a Keras model keeps in a list.
"""

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import keras
import tensorflow as tf

from replicator.step.tensorflow_internals import is_trackable


@runtime_checkable
class SavesParts(Protocol):
  """An object that says itself what a checkpoint saves of it."""

  def saved_parts(self) -> dict[str, Any]:
    """What hangs off the object, by name."""


def variables_of(step: Callable) -> dict[str, Any]:
  """The variables of a step by the path of attributes that leads to them, sorted.

  A path is the same in every process that builds the same step: it holds no name that Keras
  makes up. A variable reached on two paths appears once. Other checkpointable objects, such as
  a `tf.random.Generator`, appear as themselves.
  """
  found: dict[str, Any] = {}
  seen: set[int] = set()
  for path, item in _walk(step, "", seen):
    if id(item) not in seen:
      seen.add(id(item))
      found[path] = item
  return dict(sorted(found.items()))


def held_by(step: Callable, kinds: tuple[type, ...]) -> Iterator[tuple[str, Any]]:
  """What a step holds of some types, each with the first path of attributes that leads to it."""
  yield from _walk_to(step, kinds, "", set())


def _walk_to(value: Any, kinds: tuple[type, ...], path: str, seen: set[int]
             ) -> Iterator[tuple[str, Any]]:
  if id(value) in seen:
    return
  seen.add(id(value))
  if isinstance(value, kinds):
    yield path, value
    return
  for name, child in (_children(value) or {}).items():
    yield from _walk_to(child, kinds, f"{path}/{name}" if path else str(name), seen)


def _walk(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
  """Yields `(path, variable)`; `seen` holds the containers that were entered before."""
  if isinstance(value, keras.Variable):
    yield path, value.value
  elif isinstance(value, tf.Variable):
    yield path, value
  elif isinstance(value, (keras.layers.Layer, keras.optimizers.Optimizer)):
    for i, variable in enumerate(value.variables):
      yield f"{path}/{i:03d}", variable.value
  elif id(value) in seen:
    return
  else:
    children = _children(value)
    if children is not None:
      seen.add(id(value))
      for name, child in children.items():
        yield from _walk(child, f"{path}/{name}" if path else str(name), seen)
    elif is_trackable(value):
      yield path, value


def _children(value: Any) -> dict | None:
  """What hangs off a container, or None if it is none."""
  if isinstance(value, dict):
    return value
  if isinstance(value, (list, tuple)):
    return dict(enumerate(value))
  if isinstance(value, SavesParts) and not isinstance(value, type):
    return value.saved_parts()
  if isinstance(value, tf.Module):
    return {name: child for name, child in vars(value).items() if not name.startswith("_self_")}
  if isinstance(value, keras.random.SeedGenerator):
    return {"state": value.state}
  if isinstance(value, functools.partial):
    return {"function": value.func, "arguments": value.args, "keywords": value.keywords}
  if inspect.ismethod(value):
    return {"self": value.__self__}
  if inspect.isfunction(value):
    held = {**_globals(value.__code__, value.__globals__),
            **inspect.getclosurevars(value).nonlocals,
            "defaults": value.__defaults__, "kwdefaults": value.__kwdefaults__}
    return {k: v for k, v in held.items() if not inspect.ismodule(v) and not inspect.isclass(v)}
  return None


def _globals(code: types.CodeType, known: dict) -> dict:
  """The globals that a function uses, also in the lambdas and comprehensions inside it."""
  found = {name: known[name] for name in code.co_names if name in known}
  for constant in code.co_consts:
    if inspect.iscode(constant):
      found.update(_globals(constant, known))
  return found
