"""Changes how `tf.function`s are called and computed, with private names of TensorFlow."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.eager import lift_to_graph
from tensorflow.python.eager.polymorphic_function import autograph_util, concrete_function

_calls = contextvars.ContextVar[tuple]("calls", default=(False,))  # (inlined, *checks)


@contextlib.contextmanager
def calls_of_functions(inlined: bool, *checks: Callable[[Any], None]) -> Iterator[None]:
  """Inlines this thread's calls of `tf.function`s in the body into the caller, if `inlined`.

  Scopes that replace the values of variables need this, because compiled functions would not
  see the values. Graphs of `get_concrete_function`, which cannot be inlined, go to the checks.
  """
  token = _calls.set((inlined or _calls.get()[0], *_calls.get()[1:], *checks))
  try:
    yield
  finally:
    _calls.reset(token)


def _inlined(function: Any, *args: Any, **kwargs: Any) -> Any:
  if not _calls.get()[0]:
    return _call_function(function, *args, **kwargs)
  if tf.executing_eagerly() or not function._autograph:
    return function.python_function(*args, **kwargs)
  with ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED):
    return autograph_util.py_func_from_autograph(function.python_function)(*args, **kwargs)


def _checked(graph: Any, *args: Any, **kwargs: Any) -> Any:
  for check in _calls.get()[1:]:
    check(graph)
  return _call_graph(graph, *args, **kwargs)


_Function, _Graph = type(tf.function(lambda: None)), concrete_function.ConcreteFunction
_call_function, _call_graph = _Function.__call__, _Graph.__call__
_Function.__call__, _Graph.__call__ = map(  # TensorFlow has no hook for this.
    tf.autograph.experimental.do_not_convert, [_inlined, _checked])

NeedsPlaceholder = lift_to_graph.UnliftableError


def computed_apart(compute: Callable[[], list[tf.Tensor]]) -> list[tf.Tensor]:
  """Computes the results of a function in the current graph, with only the operations they need.

  Assignments in the function have no effect. Raises `NeedsPlaceholder` if a result depends on a
  placeholder made by the function.
  """
  apart, here = tf.__internal__.FuncGraph("apart"), tf.compat.v1.get_default_graph()
  with apart.as_default():
    results = compute()
  captured = [inside for _, inside in apart.captures]
  placeholders = {operation for operation in apart.get_operations()
                  if operation.type == "Placeholder"} - {x.op for x in captured}
  copies = lift_to_graph.lift_to_graph(results, here, disallowed_placeholders=placeholders,
                                       add_sources=True, handle_captures=True)
  return [copies[x] for x in results]
