"""The Python attributes that a step read while it was traced: the compiled step keeps their values.

Reads are recorded, so that what Python changes for itself between two calls, such as a count of
episodes, raises no alarm.
"""

import contextlib
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from replicator.errors import is_foreign
from replicator.internals.keras_internals import layers_in
from replicator.step.variables import children_of

_LARGEST = 2 ** 16  # Bytes of a value that is compared; a larger one is data.
_LONGEST = 1000     # Its elements.
_SCALARS = (bool, int, float, complex, str, bytes, np.generic, types.NoneType)
_KERAS_OWNERS = (keras.layers.Layer, keras.optimizers.Optimizer)


class FrozenAttributes:
  """The attributes of the objects that a step holds, as the step read them in `recorded`."""

  def __init__(self, step: Callable):
    self._objects = {id(value): (path, value) for path, value in _objects(step)}
    self._frozen: dict[str, tuple[Any, str, Any, bytes]] = {}  # (object, name, value, digest)

  @contextlib.contextmanager
  def recorded(self) -> Iterator[None]:
    """A context in which the step is traced."""
    with _reads_recorded({type(value) for _, value in self._objects.values()}) as reads:
      yield
    for key, name in reads:
      path, owner = self._objects.get(key, ("", None))
      if _is_own(owner, name) and (digest := _digest_of(vars(owner)[name])):
        self._frozen[f"{path}.{name}".lstrip(".")] = owner, name, vars(owner)[name], digest

  def changed(self) -> dict[str, tuple[str, str]]:
    """What the compiled step has, and what there is now, by path, if that is another value."""
    now = {path: vars(owner).get(name) for path, (owner, name, *_) in self._frozen.items()}
    return {path: (_short(pickle.loads(digest)), _short(now[path]))
            for path, (_, _, value, digest) in self._frozen.items()
            if not (now[path] is value and isinstance(value, _SCALARS))
            and _digest_of(now[path]) != digest}


def _is_own(owner: Any, name: str) -> bool:
  """Whether a name is an attribute of an object itself, and no private matter of a library."""
  hidden = "_" if isinstance(owner, _KERAS_OWNERS) else "_self_"
  return name in getattr(owner, "__dict__", {}) and not name.startswith(hidden)


def _digest_of(value: Any) -> bytes:
  """The bits of a number, a string, or a small array or container of them; else nothing."""
  if isinstance(value, dict | list | tuple) and len(value) > _LONGEST:
    return b""
  if isinstance(value, np.ndarray):
    simple = value.dtype != object
  elif isinstance(value, dict):
    simple = all(map(_digest_of, [*value.keys(), *value.values()]))
  elif isinstance(value, list | tuple):
    simple = all(map(_digest_of, value))
  else:
    simple = isinstance(value, _SCALARS)
  found = pickle.dumps(_plain(value)) if simple else b""
  return found if len(found) <= _LARGEST else b""


def _plain(value: Any) -> Any:
  """The value without the wrappers in which Keras and tf.Module keep containers."""
  if isinstance(value, dict):
    return {key: _plain(child) for key, child in value.items()}
  if isinstance(value, list):
    return [_plain(child) for child in value]
  return tuple(map(_plain, value)) if isinstance(value, tuple) else value


def _short(value: Any) -> str:
  text = repr(_plain(value))
  return text if len(text) <= 40 else f"{text[:37]}..."


def _objects(step: Any) -> Iterator[tuple[str, Any]]:
  """The modules, layers, Keras optimizers and objects of the user's classes that a step holds."""
  seen: set[int] = set()
  waiting = [("", step)]
  while waiting:
    path, value = waiting.pop()
    if id(value) in seen or isinstance(value, (*_SCALARS, tf.Variable, keras.Variable, type)):
      continue
    seen.add(id(value))
    is_long = isinstance(value, dict | list | tuple) and len(value) > _LONGEST
    children: list[tuple[Any, Any]] = (
        [] if is_long else list((children_of(value) or {}).items()))
    if isinstance(value, (tf.Module, *_KERAS_OWNERS)) or _is_of_user(value):
      yield path, value
      children = [(name, child) for name, child in vars(value).items() if _is_own(value, name)]
    if isinstance(value, keras.layers.Layer):
      children += [(layer.name, layer) for layer in layers_in(value)]
    waiting.extend((f"{path}.{name}".lstrip("."), child) for name, child in children)


def _is_of_user(value: Any) -> bool:
  module = sys.modules.get(type(value).__module__)
  file = getattr(module, "__file__", None)
  return hasattr(value, "__dict__") and file is not None and not is_foreign(file)


@contextlib.contextmanager
def _reads_recorded(classes: set[type]) -> Iterator[set[tuple[int, str]]]:
  """Collects the attributes that are read of all objects of some classes: `(id, name)`."""
  reads: set[tuple[int, str]] = set()
  with contextlib.ExitStack() as stack:
    for kind in classes:
      stack.enter_context(_replaced(kind, reads))
    yield reads


@contextlib.contextmanager
def _replaced(kind: type, reads: set[tuple[int, str]]) -> Iterator[None]:
  own = "__getattribute__" in vars(kind)
  original: Any = kind.__getattribute__

  def recording(self: Any, name: str) -> Any:
    reads.add((id(self), name))
    return original(self, name)

  kind.__getattribute__ = recording  # type: ignore[assignment, method-assign]
  try:
    yield
  finally:
    if own:
      kind.__getattribute__ = original  # type: ignore[assignment, method-assign]
    else:
      del kind.__getattribute__
