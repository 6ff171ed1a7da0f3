"""Lists the layers of a run's networks for its report."""

import math
from collections.abc import Callable
from typing import Any

from replicator.step.variables import held_by

import keras

Layer = tuple[str, str, int]  # The path in the network, the weights, and the trained parameters.


def layers_of(module: Callable) -> dict[str, list[Layer]]:
  """Returns the layers with weights of each Keras network of a step, by the network's path."""
  found = {path: _layers(network) for path, network in held_by(module, (keras.layers.Layer,))}
  return {path: layers for path, layers in found.items() if layers}


def _layers(network: keras.layers.Layer) -> list[Layer]:
  by_layer: dict[str, list[Any]] = {}
  for weight in network.weights:
    by_layer.setdefault(weight.path.rpartition("/")[0], []).append(weight)
  return [(layer, ", ".join(map(_shown, weights)),
           sum(math.prod(weight.shape) for weight in weights if weight.trainable))
          for layer, weights in by_layer.items()]


def _shown(weight: keras.Variable) -> str:
  """Formats a weight: `kernel 3x3x64x64`, or `moving_mean 64 (not trained)`."""
  shape = "x".join(map(str, weight.shape)) or "scalar"
  return f"{weight.name} {shape}{'' if weight.trainable else ' (not trained)'}"
