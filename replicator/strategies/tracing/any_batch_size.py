"""Compiles functions of batches, such as a generator's sampling, once for all batch sizes."""

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

from replicator.internals.keras_internals import values_of_scope
from replicator.step.nest import map_tensors
from replicator.strategies.tracing import python_state

import tensorflow as tf
import tree


class any_batch_size:
  """A decorator that compiles a function or method of tensors `[n, ...]` once for all n.

      @replicator.any_batch_size
      def generate(self, z, labels):  # [n, d], [n] -> [n, h, w, c]

  `tf.function` compiles for the first size it sees, and with `reduce_retracing` for any size from
  the second on. The two may round differently, so results would depend on earlier calls: a resumed
  run, which makes its calls in a different order, would deviate from an uninterrupted one.
  """

  def __init__(self, function: Callable[..., Any], owner: weakref.ref | None = None,
               name: str | None = None):
    functools.update_wrapper(self, function)
    self._function, self._owner = function, owner
    self._name = str(name or getattr(function, "__qualname__", "the function"))
    self._compiled = tf.function(function, autograph=False)
    self._traced: dict[tuple, Callable[..., Any]] = {}
    self._bound: weakref.WeakKeyDictionary[Any, any_batch_size] = weakref.WeakKeyDictionary()

  def __get__(self, instance: Any, owner: type | None = None) -> "any_batch_size":
    if instance is None:
      return self
    if instance not in self._bound:
      alive = weakref.ref(instance)
      self._bound[instance] = any_batch_size(
          lambda *batch: self._function(alive(), *batch), alive, self._name)
    return self._bound[instance]

  def __call__(self, *batch: Any) -> Any:
    """Calls the function with nests of tensors or arrays `[n, ...]`, or None.

    While a graph is being traced, as in a step, the function becomes part of that graph.
    """
    # A separate graph would use the variables of one replica, so that other replicas would get no
    # gradients, and would miss the values that a scope substitutes for variables.
    if not tf.executing_eagerly() or tf.config.functions_run_eagerly() or values_of_scope():
      return self._function(*batch)
    specs = map_tensors(lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), batch)
    key = tuple(tree.flatten(specs))
    if key not in self._traced:
      self._traced[key] = self.get_concrete_function(*specs)
    return self._traced[key](*batch)

  def get_concrete_function(self, *batch: Any) -> Any:
    """Returns the compiled function for nests of `tf.TensorSpec`s; see `tf.function`.

    Warns on stderr about Python code that has an effect only during tracing.
    """
    found: list[str] = []
    with python_state.noted_in(found, self._owner and self._owner(), self._name, "at every call",
                               "pass it the numbers"):
      concrete = self._compiled.get_concrete_function(*batch)
    for line in found:
      print(f"warning: {line}", file=sys.stderr, flush=True)
    return concrete
