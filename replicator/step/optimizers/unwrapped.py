"""Rejects optimizers that are not wrapped, in steps.

Keras and TensorFlow update by the sum of the gradients of all replicas, so the number of replicas
would change the results.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

from replicator.errors import UsageError

import keras
import tensorflow as tf

_METHODS = {keras.optimizers.Optimizer: "apply", keras.optimizers.LossScaleOptimizer: "apply",
            tf.compat.v1.train.Optimizer: "apply_gradients"}
"""The method that updates variables, by class; other classes call one of these."""

# Each thread has its own value: an evaluation in another thread may train with any optimizer.
_refuses = contextvars.ContextVar("refuses", default=False)


@contextlib.contextmanager
def refused() -> Iterator[None]:
  """Makes updates by optimizers that are not wrapped raise a UsageError in the body."""
  token = _refuses.set(True)
  try:
    yield
  finally:
    _refuses.reset(token)


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
  @functools.wraps(method)
  def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
    if _refuses.get():
      raise UsageError(f"{type(self).__name__}.{method.__name__}: an optimizer that is not wrapped "
                       "sums the gradients of all replicas; write wrap_optimizer(optimizer, "
                       "network.trainable_variables) in the constructor of the step, and call "
                       "minimize or apply on the result")
    return method(self, *args, **kwargs)
  return checked


for _kind, _name in _METHODS.items():
  setattr(_kind, _name, _checked(getattr(_kind, _name)))
