"""Asynchronous training: a chief schedules steps on workers, which share variables on servers.

A variable must fit on one server, because a GradientTape gives no gradient for the parts into which
TensorFlow's `variable_partitioner` splits a variable.

TF-Replicator's hybrid strategy has groups of replicas, synchronous within a group and asynchronous
between groups. Here a group is one worker, with one replica per GPU, or one on its CPU. (Tested
with two CPUs in place of a worker's GPUs; not yet run with several GPUs.)

Any free worker takes the next step. If a worker dies during a step, the step runs again from its
start. The log gets exactly one result per step, but updates that the lost attempt had applied stay
applied, so a step that runs again may update some of its networks twice.
"""

import contextlib
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from replicator.internals.tensorflow_internals import is_fetched
from replicator.strategies.cluster import lost, roll_call

import tensorflow as tf

CHIEF_SECONDS = 10.0
"""After this time without an answer, the chief is considered gone, and its servers end."""


def serve(resolver: Any, join_timeout: float) -> None:
  """Serves the chief, in the process of a worker or a parameter server, until the chief is gone.

  A SIGTERM does not end the process earlier: when all processes of a run are asked to stop, the
  chief still saves the variables that the servers hold.

  Raises:
    RunFailed: the chief did not start within `join_timeout` seconds.
  """
  cluster = resolver.cluster_spec()
  # On one core, TensorFlow would use one thread, and a server would deadlock.
  config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=max(os.cpu_count() or 2, 2))
  server = tf.distribute.Server(cluster, job_name=resolver.task_type, config=config,
                                task_index=resolver.task_id, protocol="grpc")
  roll_call.await_listeners(lost.processes(cluster.as_dict(), ["chief"]), join_timeout)
  asked: list[int] = []
  signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
  signal.signal(signal.SIGINT, signal.SIG_DFL)
  # Inside `server.join()`, Python would never run its signal handlers.
  heard = time.monotonic()  # When the chief last answered.
  while time.monotonic() < heard + CHIEF_SECONDS:
    if lost.listens(cluster.task_address("chief", 0)):
      heard = time.monotonic()
    elif asked:
      break
    time.sleep(0.5)
  del server
  if not asked:
    sys.exit(0)  # The chief reports how the run ended.
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  os.kill(os.getpid(), signal.SIGTERM)


class ParameterServers:
  """The workers and parameter servers of a cluster, from the chief's side.

  The `coordinator` schedules calls of `tf.function`s on free workers.
  """

  def __init__(self, strategy: tf.distribute.ParameterServerStrategy):
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver().cluster_spec()
    self.num_workers, self.num_servers = cluster.num_tasks("worker"), cluster.num_tasks("ps")
    self.num_replicas: int = strategy.num_replicas_in_sync  # One for each GPU of a worker, or one.
    tf.get_logger().addFilter(_report_lost_workers)
    self.coordinator = _Coordinator(strategy)
    self._bytes = [0] * self.num_servers
    # The number of steps that have run. It is not saved, because only differences are used.
    with tf.device(_device(0)):
      self.updates = tf.Variable(0, trainable=False, dtype=tf.int64, name="updates")

  def describe(self) -> str:
    """Describes the cluster, and what a step sees of it, in one line."""
    replicas = ("one replica with the whole global batch" if self.num_replicas == 1
                else f"the {self.num_replicas} replicas of one worker, with the global batch")
    return (f"workers: {self.num_workers}, parameter servers: {self.num_servers}; each step and "
            f"its collectives see {replicas}")

  @contextlib.contextmanager
  def spread(self) -> Iterator[None]:
    """Places each new variable in the body on the server with the fewest bytes.

    Enter it before the strategy's scope. An optimizer's slots stay with their variables.
    """
    def create(next_creator, **kwargs):
      fewest = self._bytes.index(min(self._bytes))
      belongs = "colocate_with" in kwargs
      with contextlib.nullcontext() if belongs else tf.device(_device(fewest)):
        variable = next_creator(**kwargs)
      server = tf.DeviceSpec.from_string(variable.device).task
      self._bytes[server] += (variable.shape.num_elements() or 0) * variable.dtype.size
      return variable

    with tf.variable_creator_scope(create):
      yield

  def measured(self, step: Callable[[], Any]) -> tuple[Any, tf.Tensor]:
    """Runs `step()`; returns its outputs and how many other steps ended meanwhile, int64 []."""
    graph = tf.compat.v1.get_default_graph()
    begun = self.updates.read_value()
    before = len(graph.get_operations())
    with tf.control_dependencies([begun]):
      outputs = step()
    effects = [op for op in graph.get_operations()[before:] if op.op_def.is_stateful]
    with tf.control_dependencies(effects):
      done = tf.no_op()  # On the worker, because servers do not communicate with each other.
    with tf.control_dependencies([done]):
      ended = self.updates.assign_add(1, read_value=True)
    return outputs, ended - begun - 1


class _Coordinator(tf.distribute.coordinator.ClusterCoordinator):
  """A coordinator that lets the process end while a worker is gone."""

  def __del__(self):
    """Does not wait for the threads, which do not stop while they wait for a worker."""


class RemoteValue:
  """The result of a scheduled call, which a worker may still be computing."""

  def __init__(self, value: Any):
    self._value = value

  def fetch(self) -> Any:
    """Waits for the result, a nest of NumPy arrays.

    Raises a `tf.errors.OpError` if the function failed, or a parameter server is gone.
    """
    # The coordinator's thread copies the value to this process. If the worker dies meanwhile, the
    # value is computed again. TensorFlow's `fetch` would copy it here instead, and fail.
    while not is_fetched(self._value):
      time.sleep(0.001)
    return self._value.fetch()


def _report_lost_workers(record: logging.LogRecord) -> bool:
  """Prints one line instead of the page that TensorFlow's coordinator logs about a lost worker."""
  if record.module != "cluster_coordinator":
    return True
  lost = re.match(r"Worker /job:worker/\S+task:(\d+) failed", record.getMessage())
  if lost:
    print(f"worker {lost[1]} is gone: the others do its work until it comes back", file=sys.stderr,
          flush=True)
  return False


def _device(server: int) -> str:
  return f"/job:ps/task:{server}/device:CPU:0"
