"""Private names of TensorFlow that the engine needs. A test checks them; no other file uses one."""

import contextlib
import functools
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.python import pywrap_tfe
from tensorflow.python.distribute import distribute_utils
from tensorflow.python.distribute import values as distribute_values
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import record


def mirrored(tensors: Sequence[tf.Tensor]) -> Any:
  """The value that has these equal tensors, one for each device of a strategy."""
  return distribute_utils.regroup(tensors, wrap_class=distribute_values.Mirrored)


def is_trackable(value: Any) -> bool:
  """Whether a TensorFlow checkpoint can save an object."""
  return isinstance(value, tf.__internal__.tracking.Trackable)


def wrapped_variable(variable: Any) -> Any:
  """The plain variable in a wrapper of central storage or parameter servers, or the argument."""
  return getattr(variable, "_v", variable)


def cluster_sizes(strategy: tf.distribute.ParameterServerStrategy) -> tuple[int, int]:
  """The numbers of workers and of parameter servers."""
  return strategy._num_workers, strategy._num_ps


def is_fetched(value: Any) -> bool:
  """Waits for a remote value; whether the coordinator has copied it here, or it failed."""
  return value._get_error() is not None or value._has_fetched_to_local


def graphs_called_by(graph: tf.Graph, operation: tf.Operation | None = None) -> list[tf.Graph]:
  """The graphs of the functions that one operation of a graph calls; None for all operations."""
  names = None
  if operation is not None:
    attributes = operation.node_def.attr.values()
    names = {function.name for attribute in attributes
             for function in (attribute.func, *attribute.list.func)}
  return [function.graph for name, function in graph._functions.items()
          if getattr(function, "graph", None) and (names is None or name in names)]


def handle(writer: tf.summary.SummaryWriter) -> tf.Tensor:
  """The resource of a summary writer, for `tf.raw_ops`."""
  return writer._resource


def unrecorded() -> contextlib.AbstractContextManager[None]:
  """A context in which no tape records anything."""
  return record.stop_recording()


def is_recorded(tensor: tf.Tensor) -> bool:
  """Whether a tape that is active here may have a gradient by the tensor."""
  return record.should_record_backprop([tensor])


def in_second_pass_of_recompute_grad() -> bool:
  """Whether `tf.recompute_grad`, or Keras through it, is calling its function for a gradient."""
  # TensorFlow says it nowhere else than in the name of the function that does so.
  return any(frame.f_code.co_name == "inner_recompute_grad"
             for frame, _ in traceback.walk_stack(None))


def mark_for_xla(operation: tf.Operation) -> None:
  """Lets XLA compile an operation of a graph, together with its neighbors that are marked."""
  operation._set_attr("_XlaCompile", attr_value_pb2.AttrValue(b=True))


def compile_marked_always() -> None:
  """Makes this process compile what is marked before it first runs, and then always use that.

  By default TensorFlow may run it without XLA now and then, which rounds differently.
  """
  pywrap_tfe.TF_SetXlaEnableLazyCompilation(False)


@contextlib.contextmanager
def unfused() -> Iterator[None]:
  """A context in which TensorFlow does not fuse operations of the functions that are called.

  XLA has no program for a fused one, such as _FusedMatMul. It fuses by itself.
  """
  now = eager_context.context()
  before = now.function_call_options
  now.function_call_options = _without_remapping(before.executor_type,
                                                 before.config_proto_serialized)
  try:
    yield
  finally:
    now.function_call_options = before


@functools.cache
def _without_remapping(executor_type: str | None, config: bytes
                       ) -> eager_context.FunctionCallOptions:
  changed = tf.compat.v1.ConfigProto.FromString(config)
  changed.graph_options.rewrite_options.remapping = RewriterConfig.OFF
  return eager_context.FunctionCallOptions(executor_type, changed)
