"""Refuses optimizers that are not wrapped, in steps.

Keras and TensorFlow update by the sum of the gradients of all replicas, so that the number of
replicas would change the training.
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
"""What updates variables, by class; another class calls the method of one of these."""

# Each thread has its own value: an evaluation in another one may train as it likes.
_refuses = contextvars.ContextVar("refuses", default=False)


@contextlib.contextmanager
def refused() -> Iterator[None]:
  """A context in which an optimizer that is not wrapped raises a UsageError for its update."""
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
