"""A step that a strategy cannot run is refused before the first step; see `docs/capabilities.md`.

Only 'central_storage' has a limit: it cannot run Keras layers that write a variable inside a step,
for which TensorFlow needs an aggregation.
"""

from collections.abc import Callable

import keras

from replicator.errors import UsageError
from replicator.internals.keras_internals import layers_in
from replicator.step.variables import held_by

_RATES = ("rate", "dropout", "recurrent_dropout", "stddev")  # If all are 0, a layer draws nothing.


def check_supported(step: Callable, strategy: str, num_replicas: int) -> None:
  """Raises a UsageError that names a layer of the step that a strategy cannot run, and the remedy.

  A layer that is not `trainable` passes: it is assumed to run in inference only.
  """
  if strategy != "central_storage" or num_replicas == 1:  # One replica needs no aggregation.
    return
  for path, item in held_by(step, (keras.layers.Layer, keras.random.SeedGenerator)):
    if isinstance(item, keras.random.SeedGenerator):
      raise _refusal(f"the seed generator '{path}'", num_replicas, "draw with replicator.random")
    for layer in layers_in(item):
      remedy = _remedy(layer) if layer.trainable else None
      if remedy:
        raise _refusal(f"the variables of the layer '{layer.path or layer.name}' (Keras "
                       f"{type(layer).__name__})", num_replicas, remedy)


def _remedy(layer: keras.layers.Layer) -> str | None:
  """The replacement of a layer that writes a Keras variable in training; or None."""
  if isinstance(layer, keras.layers.BatchNormalization):
    return "use replicator.GlobalBatchNorm"
  if isinstance(layer, keras.layers.SpectralNormalization):
    return "use replicator.SpectralNorm"
  if getattr(layer, "stateful", False):
    return "write stateful=False"
  rates = [getattr(layer, name) for name in _RATES if hasattr(layer, name)]
  if not has_seeds(layer) or (rates and not any(rates)):
    return None
  if isinstance(layer, keras.layers.Dropout):
    return "use replicator.Dropout"
  return "use replicator.Dropout, or draw with replicator.random"


def has_seeds(layer: keras.layers.Layer) -> bool:
  """Whether a layer itself, rather than a layer inside it, draws from a Keras seed generator."""
  return any(isinstance(x, keras.random.SeedGenerator) for x in vars(layer).values())


def _refusal(what: str, num_replicas: int, remedy: str) -> UsageError:
  return UsageError(f"Replicator.strategy = 'central_storage': it cannot update {what} on "
                    f"{num_replicas} replicas; {remedy}")
