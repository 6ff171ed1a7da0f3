"""Private TensorFlow names that the engine needs. A test checks them; no other file uses them."""

import contextlib
import functools
import json
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import record
from tensorflow.python.framework import ops
from tensorflow.python.lib.io import _pywrap_record_io
from tensorflow.python.ops import gen_math_ops
from tensorflow.python.trackable import autotrackable

AutoTrackable = autotrackable.AutoTrackable  # The base of objects whose attributes are tracked.

_PATIENCE = 600_000  # Milliseconds.


def add_in_order() -> None:
  """Makes `tf.add_n`, and sums of gradients, add in order from now on.

  The operation AddN (TensorFlow 2.21) starts with a tensor whose memory it can reuse for the sum.
  Which tensor that is depends on what has been computed so far, so the last bits of a sum of three
  or more tensors vary from call to call.
  """
  add_n = gen_math_ops.add_n
  if hasattr(add_n, "__wrapped__"):
    return

  @functools.wraps(add_n)
  def added(inputs: Sequence[tf.Tensor], name: str | None = None) -> tf.Tensor:
    is_number = inputs[0].dtype.is_floating or inputs[0].dtype.is_complex
    return functools.reduce(tf.add, inputs) if is_number else add_n(inputs, name)
  gen_math_ops.add_n = added


def set_timeouts(cluster: Mapping[str, Sequence[str]], worker_timeout: float, join_timeout: float
                 ) -> None:
  """Sets how long processes of a `MultiWorkerMirroredStrategy` wait; call it before making one.

  `cluster` has the addresses of each job. A process without a heartbeat for `worker_timeout`
  seconds counts as lost, which ends the others. They wait up to `join_timeout` seconds for the
  first process.
  """
  coordination = tf.compat.v1.ConfigProto().experimental.coordination_config
  jobs = [coordination.coordinated_job_list.add(name=job, num_tasks=len(cluster[job]))
          for job in ("chief", "worker") if job in cluster]
  eager_context.context().configure_coordination_service(
      "standalone", service_leader=f"/job:{jobs[0].name}/replica:0/task:0",
      cluster_register_timeout_in_ms=round(1000 * join_timeout),
      heartbeat_timeout_in_ms=round(1000 * worker_timeout), coordinated_jobs=jobs)


def tell_others(message: str) -> None:
  """Ends the collectives of all other processes of the cluster with this error message."""
  with contextlib.suppress(tf.errors.OpError, RuntimeError):  # They may have ended already.
    eager_context.context().report_error_to_cluster(tf.errors.UNAVAILABLE, message)


def meet(name: str) -> None:
  """Waits for all other processes of the cluster at a barrier; each name is used once."""
  eager_context.context().wait_at_barrier(name, _PATIENCE)


def exchange(name: str, value: Any, process: int, processes: int) -> list[Any]:
  """Exchanges JSON-able values between all processes of the cluster, in order. `name` must be new.

  No process returns before all have the values, so a process may end right afterwards.
  """
  run = eager_context.context()
  run.set_config_key_value(f"{name}/{process}", json.dumps(value))
  texts = [run.get_config_key_value(f"{name}/{i}", _PATIENCE) for i in range(processes)]
  with contextlib.suppress(tf.errors.UnavailableError):  # The leader has passed it and ended.
    meet(name)
  return [json.loads(text) for text in texts]


def publish(key: str) -> None:
  """Publishes a key to the other processes of the cluster."""
  eager_context.context().set_config_key_value(key, "1")


def is_published(key: str) -> bool:
  """Returns whether a process of the cluster has published a key."""
  with contextlib.suppress(tf.errors.OpError):
    return bool(eager_context.context().get_config_key_value(key, 1000))
  return False


def abort_collectives(message: str) -> None:
  """Ends the collectives that other threads of this process wait for, with this message."""
  eager_context.context().abort_collective_ops(tf.errors.UNAVAILABLE, message)


# ---- Gradients ----------------------------------------------------------------------------------

Gradient = Callable[..., list]  # (dy of each output) -> [dx of each input, or None]
_GRADIENT = "OfReplicator"  # The registered name of `_gradient_in_graph`.


def with_gradient(outputs: Sequence[tf.Tensor], inputs: Sequence[tf.Tensor], gradient: Gradient
                  ) -> list[tf.Tensor]:
  """Returns outputs computed from the inputs, with a custom gradient.

  It works for tapes inside and outside of the graph, and for derivatives of any order. Unlike
  `tf.custom_gradient`, it does not search the graph for variables; after a collective, that graph
  contains all replicas.
  """
  inputs = list(inputs)
  with record.stop_recording():
    if tf.executing_eagerly():
      results = [tf.identity(x) for x in outputs]
    else:
      graph = tf.compat.v1.get_default_graph()
      with graph.gradient_override_map({"IdentityN": _GRADIENT}):
        identity = tf.identity_n([*outputs, *inputs])
      identity[0].op.gradient_in_replicator = lambda *dy: gradient(*dy[:len(outputs)])
      results = identity[:len(outputs)]
  record.record_operation("WithGradient", results, inputs, gradient)
  return results


@tf.RegisterGradient(_GRADIENT)
def _gradient_in_graph(op: tf.Operation, *dy: tf.Tensor) -> list:
  of_inputs = op.gradient_in_replicator(*dy)
  return [None] * (len(dy) - len(of_inputs)) + of_inputs


def has_gradient(operation: tf.Operation) -> bool:
  """Returns whether TensorFlow can differentiate an operation; True if it outputs no floats.

  TensorFlow declares some gradients, such as ResizeBilinearGrad, constant, and would silently omit
  their derivatives. These count as having no gradient.
  """
  if not any(output.dtype.is_floating for output in operation.outputs):
    return True
  try:
    gradient = ops.get_gradient_function(operation)
  except LookupError:
    return False
  return gradient is not None or not operation.type.endswith("Grad")


def may_be_recorded() -> bool:
  """Returns whether an active tape may record computations."""
  return record.could_possibly_record()


def is_in_trace() -> bool:
  """Returns whether a graph is being traced here, even in the eager code of a `tf.init_scope`."""
  return any(each.is_building_function for each in eager_context.context().context_switches.stack)


# ---- Collective operations ----------------------------------------------------------------------


def collective_launchers(strategy: tf.distribute.Strategy) -> list:
  """Returns the launchers of TensorFlow's collectives on each device.

  It is empty for a strategy that shares memory between its devices.
  """
  return getattr(strategy.extended._cross_device_ops, "_launchers", [])


def launched(launchers: Sequence[Any], move: str, tensors: Sequence[tf.Tensor]
             ) -> list[tf.Tensor]:
  """Runs an 'all_gather' or 'all_to_all' across all devices, with one tensor per device.

  Their shapes are `[...] -> [devices, ...]` and `[devices, ...] -> [devices, ...]`.
  """
  def launch() -> list[tf.Tensor]:
    results = []
    for launcher, x in zip(launchers, tensors, strict=True):
      with tf.device(launcher._device):
        token = launcher._get_ordering_token()
        how = {"group_size": launcher._group_size, "group_key": launcher._group_key,
               "instance_key": launcher._next_instance_key(),
               "ordering_token": [] if token is None else [token],
               "communication_hint": launcher._options.implementation.value.lower(),
               "timeout_seconds": launcher._options.timeout_seconds or 0}
        results.append(tf.raw_ops.CollectiveGatherV2(input=x[tf.newaxis], **how)
                       if move == "all_gather" else
                       tf.raw_ops.CollectiveAllToAllV2(input=x, **how))
    return results
  # In eager mode, the first would wait for the others, which are not launched yet.
  return (tf.function(launch, autograph=False) if tf.executing_eagerly() else launch)()


def is_fetched(value: Any) -> bool:
  """Waits for a remote value; returns whether the coordinator has copied it here, or it failed."""
  return value._get_error() is not None or value._has_fetched_to_local


def graphs_called_by(graph: tf.Graph, operation: tf.Operation | None = None) -> list[tf.Graph]:
  """Returns the graphs of functions called by one operation of a graph; None for all operations."""
  named = {name: function.graph for name, function in graph._functions.items()
           if getattr(function, "graph", None)}
  if operation is None or not named:  # Attributes take time to read.
    return list(named.values())
  attributes = operation.node_def.attr.values()
  names = {function.name for attribute in attributes
           for function in (attribute.func, *attribute.list.func)}
  return [called for name, called in named.items() if name in names]


def record_reader(file: str) -> Callable[[int], tuple[bytes, int]]:
  """Returns a function that reads a TFRecord file at a position: the record, and where it ends.

  Unlike `tf.data`, it can continue after a corrupt record, and does not need devices. It raises a
  `tf.errors.DataLossError` for a wrong checksum or a truncated record, and an IndexError at the
  end.
  """
  return _pywrap_record_io.RandomRecordReader(file).read


def age(variable: tf.Variable) -> int:
  """Returns a number that is higher for variables made later in this process."""
  return int(variable._unique_id.rpartition("_")[2])


def handle(writer: tf.summary.SummaryWriter) -> tf.Tensor:
  """Returns the resource of a summary writer, for `tf.raw_ops`."""
  return writer._resource


def unrecorded() -> contextlib.AbstractContextManager[None]:
  """Returns a context in which no tape records anything."""
  return record.stop_recording()


@contextlib.contextmanager
def variables_read() -> Iterator[Callable[[], Sequence[tf.Variable]]]:
  """Yields a function that returns the trainable variables that were read in the body."""
  with record.VariableWatcher() as watcher:
    yield watcher.watched_variables


def is_recorded(tensor: tf.Tensor) -> bool:
  """Returns whether an active tape may have a gradient for the tensor."""
  return record.should_record_backprop([tensor])


def in_second_pass_of_recompute_grad() -> bool:
  """Returns whether this is the second pass of `tf.recompute_grad`, which Keras may have called."""
  # TensorFlow exposes this only in the name of the function that does so.
  return any(f.f_code.co_name == "inner_recompute_grad" for f, _ in traceback.walk_stack(None))


def mark_for_xla(operation: tf.Operation) -> None:
  """Lets XLA compile an operation of a graph, together with marked neighbors."""
  operation._set_attr("_XlaCompile", tf.compat.v1.AttrValue(b=True))


def compile_marked_always() -> None:
  """Makes this process always run marked operations with XLA; by default it sometimes does not."""
  pywrap_tfe.TF_SetXlaEnableLazyCompilation(False)


# ---- Profiles -----------------------------------------------------------------------------------


def operation_times(profile: bytes) -> dict[str, float]:
  """Returns the seconds that each operation took, by name, in a profile written by TensorFlow.

  On accelerators, these are kernels, otherwise operations of graphs. Times are summed over replicas
  and threads. The result is empty if this TensorFlow version cannot read the profile.
  """
  try:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2
  except ImportError:
    return {}
  lines = [(plane, line) for plane in xplane_pb2.XSpace.FromString(profile).planes
           for line in plane.lines]
  kernels = [(plane, line) for plane, line in lines if plane.name.startswith("/device:")
             and line.name.startswith(("Stream", "XLA Ops"))]
  times: dict[str, float] = {}
  for plane, line in kernels or lines:
    for event in line.events:
      about = plane.event_metadata[event.metadata_id]
      if kernels or about.display_name:  # TensorFlow's internal functions have none.
        times[about.name] = times.get(about.name, 0.0) + event.duration_ps / 1e12
  return times
