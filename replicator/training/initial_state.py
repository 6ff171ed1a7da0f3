"""Checks the Python state that a step's constructor makes: numbers, strings, arrays and lists.

It is not in checkpoints, so it must be the same on every worker and at every start. A vocabulary
numbered from a set, `hash()` of a string and an unseeded generator differ between processes.
"""

import hashlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType
from typing import Any

from replicator.errors import is_of_user
from replicator.step.variables import children_of
from replicator.strategies import agreement
from replicator.training.run import Run

import numpy as np
import tensorflow as tf

_MOST = 1000  # The most elements of a container to include.
_DEEPEST = 6  # The deepest nesting of containers.
_BYTES = 2 ** 20  # The most bytes of an array.
_DAY = 86_400.0
_PLAIN = (bool, int, float, complex, np.generic, str, bytes)

REMEDY = ("sort a set before numbering its elements, do not use hash() of a string, and give each "
          "generator a seed")


def noted(run: Run) -> dict[str, dict[str, str]]:
  """Returns digests of the step's attributes for `run.json`; warns if workers' digests differ.

  All workers must call it.
  """
  found = digests(run.module)
  if names := agreement.differing(run.replicator.worker_id, run.replicator.num_pipelines, found):
    run.say(f"warning: the workers have different values of the step's {named(names)}; {REMEDY}")
  return {"python_state": found}


def named(paths: list[str]) -> str:
  """Names the first of some attributes, and how many more there are."""
  return f"'{paths[0]}'" + (f" (and {len(paths) - 1} more)" if len(paths) > 1 else "")


def digests(step: Callable) -> dict[str, str]:
  """Returns a digest of each attribute with a stable state, of a step and its parts, by path."""
  found = {}
  for path, value in _attributes(step, "", {}):
    parts = list(_parts(value))
    if any(parts):
      found[path] = hashlib.sha256(b"\0".join(parts)).hexdigest()[:8]
  return found


def _attributes(owner: Any, path: str, seen: dict[int, Any]) -> Iterator[tuple[str, Any]]:
  seen[id(owner)] = owner  # Keeps it alive, so that no other object gets its id.
  for name, child in (children_of(owner) or {}).items():
    place = f"{path}/{name}" if path else str(name)
    if not _has_attributes(child):
      yield place, child
    elif id(child) not in seen:
      yield from _attributes(child, place, seen)


_OWNERS = (tf.Module, FunctionType, MethodType)


def _has_attributes(value: Any) -> bool:
  """Returns whether to look inside a value: a user's module or function, or a list of modules."""
  if isinstance(value, list | tuple | dict):
    return any(isinstance(each, _OWNERS) for each in (children_of(value) or {}).values())
  return isinstance(value, _OWNERS) and _is_of_user(value)


def _is_of_user(value: Any) -> bool:
  code = getattr(value, "__code__", None)
  module = sys.modules.get(type(value).__module__)
  return is_of_user(code.co_filename if code else getattr(module, "__file__", None) or "")


def _parts(value: Any, depth: int = 0) -> Iterator[bytes]:
  """Yields the stable state of a value in pieces; nothing for other objects."""
  if isinstance(value, _PLAIN):
    if not _is_of_process(value):
      yield f"{type(value).__name__} {value!r}".encode(errors="replace")
  elif isinstance(value, np.ndarray) or _is_constant(value):
    value = np.asarray(value)
    if value.dtype == object:  # Such as strings.
      yield from _parts(value.ravel()[:_MOST].tolist(), depth + 1)
    else:
      yield f"{value.dtype} {value.shape}".encode()
      yield np.ascontiguousarray(value).ravel()[:_BYTES // (value.itemsize or 1)].tobytes()
  elif isinstance(value, dict):
    yield from _parts(list(itertools.islice(value.items(), _MOST)), depth)
  elif isinstance(value, list | tuple) and depth < _DEEPEST:
    for element in value[:_MOST]:
      yield from _parts(element, depth + 1)


def _is_constant(value: Any) -> bool:
  """Returns whether a value is an eager tensor of numbers."""
  return (isinstance(value, tf.Tensor) and hasattr(value, "numpy")
          and value.dtype.is_numpy_compatible)


def _is_of_process(value: Any) -> bool:
  """Returns whether a value naturally differs between processes: a path, or the time."""
  if isinstance(value, str):
    return os.sep in value
  return isinstance(value, float) and abs(value - time.time()) < _DAY
