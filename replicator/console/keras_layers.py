"""Lets Keras load files with layers of this package as soon as `replicator` is imported.

The modules of the layers need TensorFlow, so they are imported only when a file names a layer; then
they register the layers themselves.
"""

import importlib
import sys
from typing import Any

from replicator.console.first_import import around_first_import

LAYERS = {"Dropout": "replicator.step.layers.dropout",
          "GlobalBatchNorm": "replicator.step.layers.batch_norm",
          "SpectralNorm": "replicator.step.layers.spectral_norm"}
"""The module of each layer that a Keras file may name, as `replicator>NAME`."""


def register_layers() -> None:
  """Registers the layers with Keras, now or when Keras is imported."""
  keras = sys.modules.get("keras")
  if keras is None:
    around_first_import("keras", _load_and_register)
  elif hasattr(keras, "saving"):  # False while Keras is being imported.
    _register(keras)


def _load_and_register(keras: Any, load: Any) -> None:
  load()
  _register(keras)


def _register(keras: Any) -> None:
  known = keras.saving.get_custom_objects()
  for name, module in LAYERS.items():
    known.setdefault(f"replicator>{name}", _Later(module, name))


class _Later:
  """A placeholder for a layer whose module is not imported yet."""

  def __init__(self, module: str, name: str):
    self._module, self._name = module, name

  def from_config(self, config: dict[str, Any]) -> Any:
    """Makes the layer; called by Keras."""
    return getattr(importlib.import_module(self._module), self._name).from_config(config)
