"""Finds networks that a step trains but never calls with `training=True`."""

import inspect
import itertools
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from replicator.console.formatting import listed
from replicator.errors import is_of_user
from replicator.internals.keras_internals import layers_in
from replicator.step.context import Calls
from replicator.step.variables import held_by
from replicator.strategies.tracing import graphs

import keras

_LAYER = inspect.getfile(keras.Layer)


def left_out(step: Callable, calls: Calls, optimizers: Mapping[str, Any]) -> list[str]:
  """Returns a warning for each network that is trained but never called in training mode.

  A target network or a frozen teacher has no optimizer. An explicit `training=False` is intended.
  """
  updated = {id(v) for optimizer in optimizers.values() for v in optimizer.variables_updated
             if v.trainable}
  lines = []
  for path, network in held_by(step, (keras.layers.Layer,)):
    called = [layer for layer in layers_in(network) if id(layer) in calls]
    frames = calls[id(called[0])] if called else None
    if frames and all(calls[id(layer)] for layer in called) and not (
        updated.isdisjoint(map(id, network.trainable_variables)) or _says_false(frames)):
      kinds = listed(list(dict.fromkeys(type(layer).__name__ for layer in called)))
      lines.append(f"the network '{path}' is trained, but never called with training=True"
                   f"{graphs.place(_up_to_keras(frames))}, so its {kinds} layers behave as in "
                   "inference; write training=True, or training=False there if you mean it")
  return lines


def _says_false(frames: Sequence[traceback.FrameSummary]) -> bool:
  return any("training=False" in (frame.line or "") for frame in frames
             if is_of_user(frame.filename))


def _up_to_keras(frames: Sequence[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
  """Returns the frames up to the call of the outermost layer."""
  return list(itertools.takewhile(lambda frame: frame.filename != _LAYER, frames))
