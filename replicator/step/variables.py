"""Which variables a step holds: those that are saved, restored, and compared between runs.

The search follows the attributes of `tf.Module`s, the closures and globals of plain functions, and
lists, tuples and dicts. It does not use TensorFlow's own object graph, which silently misses layers
that a Keras model keeps in a list.
"""

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

_KERAS_OWNERS = (keras.layers.Layer, keras.optimizers.Optimizer)


def variables_of(step: Callable) -> dict[str, Any]:
  """The variables of a step, by the path of attributes that leads to each, sorted by path.

  Paths are the same in every process, without names that Keras makes up. A variable with several
  paths appears once. Other checkpointable objects appear as themselves.
  """
  found: dict[str, Any] = {}
  seen: set[int] = set()
  for path, item in _walk(step, _is_saved):
    for variable_path, variable in _saved_of(item, path):
      if id(variable) not in seen:
        seen.add(id(variable))
        found[variable_path] = variable
  return dict(sorted(found.items()))


def held_by(step: Any, kinds: tuple[type, ...]) -> Iterator[tuple[str, Any]]:
  """The outermost objects of some types that a step holds, each with the first path to it."""
  return _walk(step, lambda value: isinstance(value, kinds))


def children_of(value: Any) -> dict | None:
  """The objects that a container holds, by name; None if `value` is not a container."""
  if isinstance(value, tf.Variable):  # To ask one of its attributes may read all copies.
    return None
  if isinstance(value, dict):
    return value
  if isinstance(value, (list, tuple)):
    return dict(enumerate(value))
  if hasattr(value, "saved_parts") and not isinstance(value, type):
    return value.saved_parts()  # An object that says itself what to save, by name.
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


def _walk(value: Any, is_wanted: Callable[[Any], bool], path: str = "",
          seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
  seen = set() if seen is None else seen
  if id(value) in seen and not isinstance(value, int | float):  # Equal numbers may be one object.
    return
  seen.add(id(value))
  if is_wanted(value):
    yield path, value
    return
  for name, child in (children_of(value) or {}).items():
    yield from _walk(child, is_wanted, f"{path}/{name}" if path else str(name), seen)


def _is_saved(value: Any) -> bool:
  return isinstance(value, (keras.Variable, tf.Variable, *_KERAS_OWNERS)) or (
      children_of(value) is None and _is_checkpointable(value))


def _is_checkpointable(value: Any) -> bool:
  try:
    tf.train.Checkpoint(value=value)
  except ValueError:
    return False
  return True


def _saved_of(value: Any, path: str) -> list[tuple[str, Any]]:
  if isinstance(value, _KERAS_OWNERS):
    return [(f"{path}/{i:03d}", variable.value) for i, variable in enumerate(value.variables)]
  return [(path, value.value if isinstance(value, keras.Variable) else value)]


def _globals(code: types.CodeType, known: dict) -> dict:
  """The globals that a function uses, also those in the lambdas and comprehensions inside it."""
  found = {name: known[name] for name in code.co_names if name in known}
  for constant in code.co_consts:
    if inspect.iscode(constant):
      found.update(_globals(constant, known))
  return found
