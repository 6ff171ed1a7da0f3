"""Finds random draws in the graph of a step that are not from `replicator.random`."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from replicator.console.formatting import listed
from replicator.internals.keras_internals import global_seed_state
from replicator.step import random, random_bits
from replicator.strategies.tracing import graphs

import tensorflow as tf

_DRAWS = re.compile(r"(Stateless)?(Random|TruncatedNormal|ParameterizedTruncatedNormal|Multinomial)"
                    r"(?!GetKey|GetAlg|UniformFullInt)")
_OWN_STREAMS = {module.__file__ for module in (random, random_bits)}
_OF_KERAS = re.compile(r"/keras/src/(random|backend/\w+/random)")

_REMEDY = "draw with replicator.random, or use replicator.Dropout"
_STATEFUL = f"they start over when the run resumes, and depend on the number of replicas; {_REMEDY}"
_GLOBAL = ("they start over when the run resumes; draw with replicator.random, or pass as seed a "
           "keras.random.SeedGenerator that is an attribute of the step")
_ALIKE = f"they are the same on every replica; {_REMEDY}"


def foreign(graph: Any) -> Iterator[tuple[tf.Operation, list]]:
  """Yields the operations that draw without `replicator.random`, with their tracebacks."""
  for operation in graphs.operations(graph):
    if draws_numbers(operation):
      frames = list(operation.traceback)
      if not any(frame.filename in _OWN_STREAMS for frame in frames):
        yield operation, frames


def draws_numbers(operation: tf.Operation) -> bool:
  """Returns whether an operation draws random numbers, not just a key or seed for other draws."""
  return bool(_DRAWS.match(operation.type)) or is_stateful(operation)


def is_stateful(operation: tf.Operation) -> bool:
  """Returns whether an operation uses its own internal generator, which no checkpoint saves."""
  return operation.op_def.is_stateful and any(each.name == "seed" for each in operation.op_def.attr)


def is_of_keras(frames: Sequence) -> bool:
  """Returns whether Keras makes the draw, in a layer or in `keras.random`."""
  return any(_OF_KERAS.search(frame.filename) for frame in frames)


def warnings(graph: Any, num_replicas: int) -> list[str]:
  """Returns warnings about draws that restart on resume, or are the same on all replicas."""
  by_kind: dict[str, list[str]] = {}
  keras_global = global_seed_state()
  if keras_global is not None and (place := graphs.first_use(graph, keras_global.value)):
    by_kind[_GLOBAL] = [f"random numbers from keras.random{place}"]
  for operation, frames in foreign(graph):
    place = graphs.place(frames)
    if is_stateful(operation):
      by_kind.setdefault(_STATEFUL, []).append(f"random numbers from TensorFlow{place}")
    elif num_replicas > 1 and is_of_keras(frames):
      by_kind.setdefault(_ALIKE, []).append(f"random numbers from Keras{place}")
  return [f"{listed(list(dict.fromkeys(found)))}: {what}" for what, found in by_kind.items()]
