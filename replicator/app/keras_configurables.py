"""Registers Keras optimizers, schedules and initializers, and activations, with gin.

    SNGAN.optimizer = @adam
    adam.learning_rate = @exponential_decay()
    exponential_decay.initial_learning_rate = 2e-4

Each has one name: its name in Keras or TensorFlow, in lower case.
"""

import inspect
import re
from collections.abc import Callable
from typing import Any

from replicator.step.optimizers.schedules import Number

import gin
import keras
import tensorflow as tf

_OPTIMIZERS = ("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lamb",
               "Lion", "Muon", "RMSprop", "SGD")  # Those that `wrap_optimizer` accepts.
# Those that are not in `replicator.step.optimizers.schedules`.
_SCHEDULES = ("CosineDecayRestarts", "ExponentialDecay", "InverseTimeDecay")
_INITIALIZERS = ("GlorotNormal", "GlorotUniform", "HeNormal", "HeUniform", "LecunNormal",
                 "LecunUniform", "Ones", "Orthogonal", "RandomNormal", "RandomUniform",
                 "TruncatedNormal", "VarianceScaling", "Zeros")
_ACTIVATIONS = ("elu", "gelu", "leaky_relu", "relu", "relu6", "selu", "sigmoid", "silu", "softmax",
                "softplus", "softsign", "tanh")
_OPTIONAL_NUMBERS = ("weight_decay", "clipnorm", "clipvalue", "global_clipnorm",
                     "loss_scale_factor")


def _hint(name: str, default: Any, number: Any) -> Any:
  """Returns the type of a parameter that Keras does not annotate; `number` is that of floats."""
  if name in _OPTIONAL_NUMBERS:
    return number | None
  if name == "name":
    return str | None
  if isinstance(default, (bool, str)):
    return type(default)
  if default is inspect.Parameter.empty:
    return number
  # Keras sometimes writes the default of a float as an int.
  return number if isinstance(default, (int, float)) and name != "seed" else Any


def _register(function: Callable, name: str, module: str) -> None:
  """Makes `function` configurable; gin files may set its named parameters."""
  def call(*args, **kwargs):
    return function(*args, **kwargs)
  signature = inspect.signature(function)
  named = [p for p in signature.parameters.values() if p.kind != p.VAR_KEYWORD]
  call.__name__ = call.__qualname__ = name
  call.__doc__ = function.__doc__
  call.__signature__ = signature.replace(parameters=named)  # type: ignore[attr-defined]
  number = Number if module == "keras.optimizers" else float
  call.__annotations__ = {p.name: _hint(p.name, p.default, number) for p in named}
  if inspect.isclass(function):
    call.__annotations__["return"] = function
  # The program passes the input of an activation.
  denied = [named[0].name] if module == "tf.nn" else None
  gin.external_configurable(call, name=name, module=module, denylist=denied)


def _snake_case(name: str) -> str:
  return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


for _name in _OPTIMIZERS:
  _register(getattr(keras.optimizers, _name), _name.lower(), "keras.optimizers")
for _name in _SCHEDULES:
  _register(getattr(keras.optimizers.schedules, _name), _snake_case(_name),
            "keras.optimizers.schedules")
for _name in _INITIALIZERS:
  _register(getattr(keras.initializers, _name), _snake_case(_name), "keras.initializers")
for _name in _ACTIVATIONS:
  _register(getattr(tf.nn, _name), _name, "tf.nn")
