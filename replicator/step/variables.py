"""Which variables a step holds: those that are saved, restored, and compared between runs.

The search follows the attributes of `tf.Module`s, the closures and globals of plain functions, and
lists, tuples and dicts; then those of Keras layers and metrics, and of objects of a user's classes.
It does not use TensorFlow's own object graph, which silently misses layers that a Keras model keeps
in a list.
"""

import collections
import dataclasses
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from replicator.internals.tensorflow_internals import AutoTrackable
from replicator.step.optimizers.optimizer import Optimizer

import keras
import tensorflow as tf

_KERAS_OWNERS = (keras.layers.Layer, keras.optimizers.Optimizer, keras.metrics.Metric)
_STATE = (keras.Variable, tf.Variable, tf.random.Generator, tf.data.Iterator, tf.queue.QueueBase,
          tf.lookup.experimental.MutableHashTable, tf.lookup.experimental.DenseHashTable)
_OF_LIBRARIES = {"tensorflow", "keras", "numpy", "replicator", *sys.stdlib_module_names}


def variables_of(step: Callable) -> dict[str, Any]:
  """The variables of a step, by the path of attributes that leads to each, sorted by path.

  Paths are the same in every process, without names that Keras makes up. A variable with several
  paths appears once. Other objects with a state, such as generators, appear as themselves.
  """
  found: dict[str, Any] = {}
  seen: set[int] = set()
  for path, item in _walk(step, _is_saved, goes_inside=True):
    for variable_path, variable in _saved_of(item, path):
      if id(variable) not in seen:
        seen.add(id(variable))
        found[variable_path] = variable
  return dict(sorted(found.items()))


def held_by(step: Any, kinds: tuple[type, ...]) -> Iterator[tuple[str, Any]]:
  """The outermost objects of some types that a step holds, each with the first path to it.

  A `keras.Model` that is a step, or a part of one, is no network.
  """
  return _walk(step, lambda value: isinstance(value, kinds) and not _is_step(value))


def function_of(step: Callable) -> Callable:
  """What a step computes: itself, or of a `keras.Model` its own `train_step`, else its `call`."""
  if not isinstance(step, keras.Model):
    return step
  return step.train_step if _has_train_step(step) else step.call


def children_of(value: Any) -> dict | None:
  """The objects that a container holds, by name; None if `value` is not a container."""
  parts = _parts_of(value)
  return _attributes_of(value) if parts is None else parts


def _parts_of(value: Any) -> dict | None:
  if isinstance(value, (tf.Variable, tf.random.Generator)):
    return None  # To ask an attribute of a variable may read all copies.
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
  if isinstance(value, tf.types.experimental.PolymorphicFunction):
    return {"function": value.python_function}
  if inspect.ismethod(value):
    return {"self": value.__self__}
  if inspect.isfunction(value):
    held = {**_globals(value.__code__, value.__globals__),
            **inspect.getclosurevars(value).nonlocals,
            "defaults": value.__defaults__, "kwdefaults": value.__kwdefaults__}
    return {k: v for k, v in held.items() if not inspect.ismodule(v) and not inspect.isclass(v)}
  return None


def _attributes_of(value: Any) -> dict | None:
  """The attributes of a Keras layer or metric, and of an object of a user's class; else None."""
  if isinstance(value, (type, keras.optimizers.Optimizer, tf.Variable, tf.random.Generator)):
    return None
  is_known = isinstance(value, (AutoTrackable, keras.metrics.Metric, types.SimpleNamespace))
  if not is_known and type(value).__module__.partition(".")[0] in _OF_LIBRARIES:
    return None
  fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()  # Maybe slots.
  held = {**{each.name: getattr(value, each.name, None) for each in fields},
          **getattr(value, "__dict__", {})}
  # What Keras keeps for itself has other paths, which last from version to version.
  return {name: held[name] for name in sorted(held, key=lambda name: name.startswith("_"))
          if not name.startswith("_self_")}


def _walk(root: Any, is_wanted: Callable[[Any], bool], goes_inside: bool = False
          ) -> Iterator[tuple[str, Any]]:
  """The wanted objects with their paths; with `goes_inside` also those that wanted ones hold.

  What the attributes of layers and of plain objects lead to comes last.
  """
  seen: dict[int, Any] = {}  # With the objects, whose ids others would get.
  later = collections.deque[tuple[str, dict]]()

  def visit(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if id(value) in seen and not isinstance(value, int | float):  # Equal numbers may be one object.
      return
    seen[id(value)] = value
    if is_wanted(value):
      yield path, value
      if not goes_inside:
        return
    parts = _parts_of(value)
    if parts is not None:
      yield from visit_all(path, parts)
    elif attributes := _attributes_of(value):
      later.append((path, attributes))

  def visit_all(path: str, children: dict) -> Iterator[tuple[str, Any]]:
    for name, child in children.items():
      yield from visit(f"{path}/{name}" if path else str(name), child)

  yield from visit("", root)
  while later:
    yield from visit_all(*later.popleft())


def _is_saved(value: Any) -> bool:
  return isinstance(value, (*_STATE, *_KERAS_OWNERS)) and not _is_step(value)


def _is_step(value: Any) -> bool:
  """Whether a `keras.Model` is a step, or a part of one: it says how it trains."""
  if not isinstance(value, keras.Model) or type(value).__module__.startswith("keras."):
    return False
  return _has_train_step(value) or any(
      True for _ in _walk(vars(value), lambda child: isinstance(child, Optimizer)))


def _has_train_step(model: keras.Model) -> bool:
  return type(model).train_step is not keras.Model.train_step


def _saved_of(value: Any, path: str) -> list[tuple[str, Any]]:
  if isinstance(value, _KERAS_OWNERS):
    return [(f"{path}/{i:03d}", variable.value) for i, variable in enumerate(value.variables)]
  return [(path, value.value if isinstance(value, keras.Variable) else value)]


def _globals(code: types.CodeType, known: dict) -> dict:
  """The globals that a function uses, also those in the lambdas and comprehensions inside it.

  A function of TensorFlow or Keras uses none of a step's.
  """
  if str(known.get("__name__")).partition(".")[0] in _OF_LIBRARIES:
    return {}
  found = {name: known[name] for name in code.co_names if name in known}
  for constant in code.co_consts:
    if inspect.iscode(constant):
      found.update(_globals(constant, known))
  return found
