"""Functions of batches, such as samples of a generator, which are compiled once for any size."""

import functools
import weakref
from collections.abc import Callable
from typing import Any

from replicator.internals.keras_internals import values_of_scope
from replicator.step.nest import map_tensors

import tensorflow as tf
import tree


class any_batch_size:
  """Compiles a function, or a method, of tensors `[n, ...]` once for every n.

      @replicator.any_batch_size
      def generate(self, z, labels):  # [n, d], [n] -> [n, h, w, c]

  `tf.function` compiles for the size that comes first, and with `reduce_retracing` for any size
  from the second one on. The two may round differently, so that a number depends on what was called
  before: a resumed run, which acts before it evaluates, would leave the path of the run that was
  not stopped.
  """

  def __init__(self, function: Callable[..., Any]):
    functools.update_wrapper(self, function)
    self._function = function
    self._compiled = tf.function(function, autograph=False)
    self._traced: dict[tuple, Callable[..., Any]] = {}
    self._bound: weakref.WeakKeyDictionary[Any, any_batch_size] = weakref.WeakKeyDictionary()

  def __get__(self, instance: Any, owner: type | None = None) -> "any_batch_size":
    if instance is None:
      return self
    if instance not in self._bound:
      alive = weakref.ref(instance)
      self._bound[instance] = any_batch_size(lambda *batch: self._function(alive(), *batch))
    return self._bound[instance]

  def __call__(self, *batch: Any) -> Any:
    """Calls the function with nests of tensors or arrays `[n, ...]`, or None.

    In a step, and wherever else a graph is traced, it is a part of that graph.
    """
    # A graph of its own would have the variables of one replica, whose gradients others lack, and
    # none of the values that replace those of variables here.
    if not tf.executing_eagerly() or tf.config.functions_run_eagerly() or values_of_scope():
      return self._function(*batch)
    specs = map_tensors(lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), batch)
    key = tuple(tree.flatten(specs))
    if key not in self._traced:
      self._traced[key] = self.get_concrete_function(*specs)
    return self._traced[key](*batch)

  def get_concrete_function(self, *batch: Any) -> Any:
    """The compiled function for nests of `tf.TensorSpec`s; see `tf.function`."""
    return self._compiled.get_concrete_function(*batch)
