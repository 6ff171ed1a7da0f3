"""Asynchronous training: a chief gives steps to workers, which share variables on servers.

A variable must fit on one server: a GradientTape gives no gradient for the parts of a variable
that TensorFlow's `variable_partitioner` splits.

Where TF-Replicator's hybrid strategy has groups of replicas, synchronous inside and asynchronous
between groups, here a group is one worker, with one replica on each of its GPUs, or one on its CPU.
(Tested with two CPUs in place of a worker's GPUs; not yet run with several GPUs.)

Any free worker takes the next step. If a worker dies during a step, the step is run again from its
start. The log gets exactly one outcome per step, but what the lost attempt had applied stays
applied: a step that is run again may update some of its networks twice.
"""

import contextlib
import logging
import math
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from replicator.internals.tensorflow_internals import is_fetched
from replicator.strategies.cluster.lost import listens

import tensorflow as tf

CHIEF_SECONDS = 10.0
"""A chief that has not answered for so long is gone, and its servers end."""


def serve(resolver: Any) -> None:
  """Serves the chief, in the process of a worker or a parameter server, until the chief is gone.

  A SIGTERM ends the process only then, too: the servers hold the variables that the chief still
  saves when all processes of a run are asked to stop.
  """
  asked: list[int] = []
  signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
  signal.signal(signal.SIGINT, signal.SIG_DFL)
  cluster = resolver.cluster_spec()
  # With one thread, on one core, a server would wait for itself.
  config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=max(os.cpu_count() or 2, 2))
  server = tf.distribute.Server(cluster, job_name=resolver.task_type, config=config,
                                task_index=resolver.task_id, protocol="grpc")
  # Inside `server.join()`, Python would never run its signal handlers.
  heard = math.inf  # When the chief was there for the last time.
  while time.monotonic() < heard + CHIEF_SECONDS:
    if listens(cluster.task_address("chief", 0)):
      heard = time.monotonic()
    elif asked:
      break
    time.sleep(0.5)
  del server
  if not asked:
    sys.exit(0)  # The chief knows how the run ended.
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  os.kill(os.getpid(), signal.SIGTERM)


class ParameterServers:
  """The workers and the parameter servers of a cluster, as the chief sees them.

  The `coordinator` gives calls of `tf.function`s to free workers.
  """

  def __init__(self, strategy: tf.distribute.ParameterServerStrategy):
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver().cluster_spec()
    self.num_workers, self.num_servers = cluster.num_tasks("worker"), cluster.num_tasks("ps")
    self.num_replicas: int = strategy.num_replicas_in_sync  # One for each GPU of a worker, or one.
    tf.get_logger().addFilter(_report_lost_workers)
    self.coordinator = _Coordinator(strategy)
    self._bytes = [0] * self.num_servers
    # The number of steps that were run. It is not saved: only differences of it are used.
    with tf.device(_device(0)):
      self.updates = tf.Variable(0, trainable=False, dtype=tf.int64, name="updates")

  def describe(self) -> str:
    """One line about the cluster, and about what a step sees of it."""
    replicas = ("one replica with the whole global batch" if self.num_replicas == 1
                else f"{self.num_replicas} replicas, those of one worker, with the global batch")
    return (f"workers: {self.num_workers}, parameter servers: {self.num_servers}; each step sees "
            f"{replicas}, and its collectives are over no more")

  @contextlib.contextmanager
  def spread(self) -> Iterator[None]:
    """A context that places each new variable on the server with the fewest bytes.

    Enter it before the strategy's scope. An optimizer's slot goes where its variable is.
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
      done = tf.no_op()  # On the worker, because parameter servers do not see each other.
    with tf.control_dependencies([done]):
      ended = self.updates.assign_add(1, read_value=True)
    return outputs, ended - begun - 1


class _Coordinator(tf.distribute.coordinator.ClusterCoordinator):
  """A coordinator that lets the process end while a worker is gone."""

  def __del__(self):
    """Does not wait for the threads: while they wait for a worker, they do not stop."""


class RemoteValue:
  """The outcome of a scheduled call, which a worker may still be computing."""

  def __init__(self, value: Any):
    self._value = value

  def fetch(self) -> Any:
    """Waits for the outcome, a nest of NumPy arrays.

    Raises a `tf.errors.OpError` if the function failed, or a parameter server is gone.
    """
    # The coordinator's thread copies the value to this process; if the worker dies meanwhile, it
    # has the value computed again. TensorFlow's `fetch` would copy the value itself, and fail.
    while not is_fetched(self._value):
      time.sleep(0.001)
    return self._value.fetch()


def _report_lost_workers(record: logging.LogRecord) -> bool:
  """Prints one line instead of the page that TensorFlow's coordinator logs about a lost worker."""
  if record.module != "cluster_coordinator":
    return True
  lost = re.match(r"Worker /job:worker/\S+task:(\d+) failed", record.getMessage())
  if lost:
    print(f"worker {lost[1]} is gone: others do its work until it is back", file=sys.stderr,
          flush=True)
  return False


def _device(server: int) -> str:
  return f"/job:ps/task:{server}/device:CPU:0"
