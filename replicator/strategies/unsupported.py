"""What a strategy cannot run is refused before the first step.

`docs/capabilities.md` has what was found to run. Under 'central_storage' the one thing that does
not is Keras' own way to write a variable inside a step: TensorFlow must know what to do with the
replicas' values of it (an aggregation), and Keras does not say.
"""

from collections.abc import Callable

import keras

from replicator.errors import UsageError
from replicator.step.keras_internals import layers_in
from replicator.step.variables import held_by

_RATES = ("rate", "dropout", "recurrent_dropout", "stddev")  # A layer with all zero does not draw.


def check_supported(step: Callable, strategy: str, num_replicas: int) -> None:
  """Checks that a step holds nothing that TensorFlow fails at under a strategy.

  A layer that is not `trainable` passes: it is taken for one that only infers.

  Args:
    step: the step, with all its networks.
    strategy: one of `replicator.strategies.strategy.NAMES`.
    num_replicas: in sync.

  Raises:
    UsageError: it does; the message has the layer and the remedy.
  """
  if strategy != "central_storage" or num_replicas == 1:  # One replica writes as it likes.
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
  """What to write in place of a layer that writes variables of Keras' in training, or None."""
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
  """Whether a layer itself, not one inside it, draws from a generator of Keras'."""
  return any(isinstance(x, keras.random.SeedGenerator) for x in vars(layer).values())


def _refusal(what: str, num_replicas: int, remedy: str) -> UsageError:
  return UsageError(f"Replicator.strategy = 'central_storage': it cannot update {what} on "
                    f"{num_replicas} replicas; {remedy}")
