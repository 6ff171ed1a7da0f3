"""Asynchronous training: a chief hands steps to workers, around variables on parameter servers.

A variable lives whole on one parameter server. TensorFlow can also cut one along its first axis
(`variable_partitioner`), and Keras layers compute with the pieces, but a GradientTape gives no
gradient for them: what is too large for one server is out of reach.

Any free worker takes the next step. When one dies in the middle, another takes its step, or the
same after it has joined again, and runs it from the start. The log gets exactly one outcome of
every step, but what the lost attempt had already applied stays applied: a step that is run
again may train some of its networks twice.
"""

import contextlib
import logging
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from replicator.step.tensorflow_internals import cluster_sizes, is_fetched


def serve(resolver: Any) -> None:
  """In the process of a worker or a parameter server: serves until it is killed.

  A SIGTERM ends it only once the chief is gone. When all processes of a run are asked to stop,
  the chief still needs them: they hold what it saves.

  Args:
    resolver: a `tf.distribute.cluster_resolver.ClusterResolver`.
  """
  asked: list[int] = []
  signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
  signal.signal(signal.SIGINT, signal.SIG_DFL)
  cluster = resolver.cluster_spec()
  server = tf.distribute.Server(cluster, job_name=resolver.task_type,
                                task_index=resolver.task_id, protocol="grpc")
  # Python would never get to run its handler of a signal inside `server.join()`.
  while not asked or _listens(cluster.task_address("chief", 0)):
    time.sleep(0.2)
  del server
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  os.kill(os.getpid(), signal.SIGTERM)


def _listens(address: str) -> bool:
  host, _, port = address.rpartition(":")
  with contextlib.suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), 1):
    return True
  return False


class ParameterServers:
  """What the chief knows of the workers and parameter servers.

  Args:
    strategy: a `tf.distribute.ParameterServerStrategy`.

  Attributes:
    num_workers: how many processes run steps.
    num_servers: how many processes hold variables.
    num_replicas: how many replicas run a step: the GPUs of one worker, or one.
    updates: int64 [], how many steps were run; on the first parameter server. Not saved: only
      its differences mean something.
  """

  def __init__(self, strategy: Any):
    self.num_workers, self.num_servers = cluster_sizes(strategy)
    self.num_replicas: int = strategy.num_replicas_in_sync
    tf.get_logger().addFilter(_tell_of_lost_workers)
    self._coordinator = _Coordinator(strategy)
    self._bytes = [0] * self.num_servers
    with tf.device(_device(0)):
      self.updates = tf.Variable(0, trainable=False, dtype=tf.int64, name="updates")

  def describe(self) -> str:
    """One line: how many there are, and what a step sees."""
    replicas = ("one replica with the whole global batch" if self.num_replicas == 1
                else f"{self.num_replicas} replicas, those of one worker, with the global batch")
    return (f"workers: {self.num_workers}, parameter servers: {self.num_servers}; each step sees "
            f"{replicas}, and its collectives are over no more")

  def schedule(self, function: Callable, arguments: tuple) -> "RemoteValue":
    """Has a free worker call a `tf.function`."""
    return RemoteValue(self._coordinator.schedule(function, args=arguments))

  def join(self) -> None:
    """Waits for all that is scheduled."""
    self._coordinator.join()

  @contextlib.contextmanager
  def spread(self) -> Iterator[None]:
    """Enter it before the strategy's scope: a new variable goes where the fewest bytes are.

    What belongs to a variable, such as an optimizer's moments of it, goes where that is. The
    same program places its variables alike every time.
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
    """`step()`, and its staleness: how many steps of others ended while it ran, int64 []."""
    graph = tf.compat.v1.get_default_graph()
    begun = self.updates.read_value()
    before = len(graph.get_operations())
    with tf.control_dependencies([begun]):
      outputs = step()
    effects = [op for op in graph.get_operations()[before:] if op.op_def.is_stateful]
    with tf.control_dependencies(effects):
      done = tf.no_op()  # Here, on the worker: parameter servers do not see each other.
    with tf.control_dependencies([done]):
      ended = self.updates.assign_add(1, read_value=True)
    return outputs, ended - begun - 1


class _Coordinator(tf.distribute.coordinator.ClusterCoordinator):
  """One that lets the process end while a worker is gone."""

  def __del__(self):
    """Does not stop the threads, which do not heed it as long as they wait for a worker."""


class RemoteValue:
  """What a worker computes, or will."""

  def __init__(self, value: Any):
    self._value = value

  def fetch(self) -> Any:
    """Waits for it; a nest of NumPy arrays.

    Raises:
      tf.errors.OpError: the function failed, or a parameter server is gone.
    """
    # The coordinator's thread copies it here, and has it computed again if the worker dies in the
    # middle. TensorFlow's `fetch` would copy it too, and fail.
    while not is_fetched(self._value):
      time.sleep(0.001)
    return self._value.fetch()


def _tell_of_lost_workers(record: logging.LogRecord) -> bool:
  """One line in place of the page that TensorFlow's coordinator logs; what is fatal it raises."""
  if record.module != "cluster_coordinator":
    return True
  lost = re.match(r"Worker /job:worker/\S+task:(\d+) failed", record.getMessage())
  if lost:
    print(f"worker {lost[1]} is gone: others do its work until it is back", file=sys.stderr,
          flush=True)
  return False


def _device(server: int) -> str:
  return f"/job:ps/task:{server}/device:CPU:0"
