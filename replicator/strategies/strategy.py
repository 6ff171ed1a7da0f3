"""Makes the `tf.distribute.Strategy` that a gin file names, once per process."""

import contextlib
import functools
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from replicator.console.formatting import labeled
from replicator.errors import RunFailed, UsageError, at_least_one, nearest
from replicator.internals.first_use import started_at
from replicator.internals.tensorflow_internals import set_timeouts
from replicator.step.logical_devices import MultiDeviceMirroredStrategy
from replicator.strategies import one_replica, parameter_server
from replicator.strategies.cluster import lost, roll_call, tf_config

import tensorflow as tf

NAMES = ("default", "one_device", "mirrored", "multi_worker_mirrored", "central_storage",
         "parameter_server", "tpu")
"""The strategies that `Replicator.strategy` may name."""

NEW_PROCESS = ("start a new process (in a notebook, restart the kernel), and do not use TensorFlow "
               "before app.run, replicator.train or the Replicator; prepare data in the function "
               "that app.run calls, in evaluate, or in a function that returns train's "
               "tf.data.Dataset")
"""The remedy for settings that cannot change once TensorFlow has started."""


@functools.cache
def make(name: str, logical_cpus: int | None = None, tpu: str | None = None,
         devices_per_replica: int = 1, manager: str = "auto", servers: int = 1,
         worker_timeout: float = 10.0, join_timeout: float = 600.0) -> tf.distribute.Strategy:
  """Makes the strategy `name`, or returns the one that this process already has.

  It is cached because the collectives of two MirroredStrategy objects over the same devices would
  collide. In a worker or parameter server process of a 'parameter_server' cluster, the call never
  returns: the process serves the chief, and ends after it. The arguments are those of `Replicator`;
  `manager` is its `cluster`.

  Raises:
    UsageError: the name is unknown, TF_CONFIG is invalid, there is no TPU, or the devices cannot be
      divided as requested.
    RunFailed: another process of the cluster did not start in time, or has this one's number.
  """
  if name not in NAMES:
    raise UsageError(f"Replicator.strategy = '{name}': no such strategy.{nearest(name, NAMES)} "
                     f"Write one of: {', '.join(NAMES)}")
  return one_replica.seen_in_steps(
      _split(name, logical_cpus, devices_per_replica) if devices_per_replica != 1 else
      _tpu(tpu) if name == "tpu" else
      _of_processes(name, logical_cpus, *tf_config.make(name, manager, servers), worker_timeout,
                    join_timeout) if name in ("multi_worker_mirrored", "parameter_server") else
      _of_this_process(name, _devices(logical_cpus)))


def _of_this_process(name: str, devices: list[str]) -> tf.distribute.Strategy:
  if name == "default":
    return tf.distribute.get_strategy()
  # Over one device, a MirroredStrategy would only wrap the variables.
  if name == "one_device" or (name == "mirrored" and len(devices) == 1):
    return tf.distribute.OneDeviceStrategy(devices[0])
  if name == "central_storage":
    return tf.distribute.experimental.CentralStorageStrategy(devices, parameter_device="/cpu:0")
  return tf.distribute.MirroredStrategy(devices, cross_device_ops=_cross_device_ops(devices))


def _of_processes(name: str, logical_cpus: int | None, config: dict[str, Any], source: str,
                  worker_timeout: float, join_timeout: float) -> tf.distribute.Strategy:
  """The strategy of the processes in `config`, a TF_CONFIG."""
  if logical_cpus is not None:
    raise UsageError(f"Replicator.logical_cpus = {logical_cpus}: '{name}' has one replica for "
                     "each process on CPUs; start more workers instead")
  if tf_config.is_chief(os.environ):
    print(labeled("cluster", f"{tf_config.shown(config)} (from {source})"),
          "note: these ports accept commands from any machine that can reach them, without a "
          "password; see docs/howto/security.md", sep="\n", file=sys.stderr, flush=True)
  task, jobs = config["task"], tf_config.TRAINING_JOBS[name]
  _, *others = lost.processes(config["cluster"], jobs).items()
  try:
    if name == "parameter_server":
      roll_call.attend(config, jobs, join_timeout)
      resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
      if task["type"] in ("worker", "ps"):
        parameter_server.serve(resolver, join_timeout)
      roll_call.await_listeners(dict(others), join_timeout)
      return tf.distribute.ParameterServerStrategy(resolver)
    if has_started():
      raise UsageError(f"Replicator.strategy = '{name}': TensorFlow has already started in this "
                       f"process, without the cluster{_started()}; {NEW_PROCESS}")
    set_timeouts(config["cluster"], worker_timeout, join_timeout)
    roll_call.attend(config, jobs, join_timeout)
    if tf_config.is_chief(os.environ):
      roll_call.await_listeners(dict(others), join_timeout)
    with _sigterm_kept():
      return tf.distribute.MultiWorkerMirroredStrategy()
  except ValueError as error:  # For example an unknown job.
    raise UsageError(f"TF_CONFIG: {error}") from error
  except tf.errors.DeadlineExceededError as error:
    raise lost.late(lost.first(config["cluster"]), join_timeout) from error
  except tf.errors.UnavailableError as error:  # It was listening when this process started.
    raise RunFailed(f"{lost.first(config['cluster'])} has ended (see its log); restart all "
                    "processes of the run") from error
  except tf.errors.InternalError as error:
    if said := lost.failure(str(error), config["cluster"]):
      raise RunFailed(said[0]) from error
    raise
  except tf.errors.UnknownError as error:
    if "Could not start gRPC server" not in str(error):
      raise
    address = config["cluster"][task["type"]][task["index"]]
    raise UsageError(lost.port_taken(f"{task['type']} {task['index']} ({address})")) from error


def has_started() -> bool:
  """Whether TensorFlow has started in this process, which can then no longer join a cluster."""
  threads = tf.config.threading.get_inter_op_parallelism_threads()
  try:
    tf.config.threading.set_inter_op_parallelism_threads(threads + 1)
  except RuntimeError:
    return True
  tf.config.threading.set_inter_op_parallelism_threads(threads)
  return False


def _started() -> str:
  """The line of user code that started TensorFlow, if it is known."""
  return f", at {place}" if (place := started_at()) else ""


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
  """Restores the SIGTERM handler that TensorFlow replaces in the body by one that ignores it."""
  before = signal.getsignal(signal.SIGTERM)
  yield
  if threading.current_thread() is threading.main_thread():  # Python's handlers run only there.
    signal.signal(signal.SIGTERM, before)


def _devices(logical_cpus: int | None) -> list[str]:
  if logical_cpus is None:
    gpus = tf.config.list_logical_devices("GPU")
    return [f"/gpu:{i}" for i in range(len(gpus))] or ["/cpu:0"]
  at_least_one("Replicator", logical_cpus=logical_cpus)
  cpu = tf.config.list_physical_devices("CPU")[0]
  if not tf.config.get_logical_device_configuration(cpu):
    try:
      tf.config.set_logical_device_configuration(
          cpu, [tf.config.LogicalDeviceConfiguration()] * logical_cpus)
    except RuntimeError as error:
      raise UsageError(f"Replicator.logical_cpus = {logical_cpus}: TensorFlow has already started "
                       f"with one CPU device{_started()}; {NEW_PROCESS}") from error
  available = len(tf.config.list_logical_devices("CPU"))
  if available < logical_cpus:
    raise UsageError(f"Replicator.logical_cpus = {logical_cpus}: this process already runs with "
                     f"{available} logical CPUs; {NEW_PROCESS}")
  return [f"/cpu:{i}" for i in range(logical_cpus)]


def _split(name: str, logical_cpus: int | None, count: int) -> tf.distribute.Strategy:
  """Makes a strategy whose replicas span `count` devices each; for 'one_device', one replica."""
  if not isinstance(count, int) or count < 1:
    raise UsageError(f"Replicator.devices_per_replica = {count!r}: must be a whole number of at "
                     "least 1")
  if name not in ("one_device", "mirrored"):
    raise UsageError(f"Replicator.devices_per_replica = {count}: works with 'mirrored' and "
                     f"'one_device', not with '{name}'; use one of those, or 1")
  devices = _devices(logical_cpus)
  if name == "one_device":
    devices = devices[:count]
  if len(devices) % count:
    raise UsageError(
        f"Replicator.devices_per_replica = {count}: {len(devices)} devices cannot be divided into "
        f"replicas of {count}; set Replicator.logical_cpus to a multiple of {count}, or use "
        f"a multiple of {count} GPUs")
  replicas = [devices[i:i + count] for i in range(0, len(devices), count)]
  return MultiDeviceMirroredStrategy(
      replicas, _cross_device_ops([of_replica[0] for of_replica in replicas]))


def _cross_device_ops(devices: list[str]) -> tf.distribute.CrossDeviceOps | None:
  # TensorFlow's default for CPUs is several times slower. For GPUs, its default is NCCL, which
  # refuses logical devices that share a GPU.
  shared = "cpu" in devices[0] or len(devices) > len(tf.config.list_physical_devices("GPU"))
  return tf.distribute.ReductionToOneDevice() if shared else None


def _tpu(name: str | None) -> tf.distribute.Strategy:
  try:
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name or "")
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
  except (ValueError, tf.errors.OpError, OSError, RuntimeError) as error:
    reason = str(error).strip().splitlines()[0]
    raise UsageError(f"Replicator.strategy = 'tpu': found no TPU ({reason}); name one with "
                     "Replicator.tpu, or choose another strategy") from error
  return tf.distribute.TPUStrategy(resolver)
