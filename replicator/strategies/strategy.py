"""From the name in a gin file to a `tf.distribute.Strategy`, once per process.

`logical_cpus = N` splits the CPU into N devices, so that replication can be tried, tested
and proved on any machine.
"""

import functools
import json
import os
import re
from typing import Any

import tensorflow as tf

from replicator.errors import UsageError, nearest
from replicator.step.logical_devices import SplitStrategy
from replicator.step.tensorflow_internals import mirrored
from replicator.strategies import parameter_server

NAMES = ("default", "one_device", "mirrored", "multi_worker_mirrored", "central_storage",
         "parameter_server", "tpu")


@functools.cache
def make(name: str, logical_cpus: int | None = None, tpu: str | None = None,
         devices_per_replica: int = 1) -> tf.distribute.Strategy:
  """Makes the strategy `name`, or returns the one this process already has.

  Two MirroredStrategy objects over the same devices would collide in their collectives,
  hence once per process.

  Args:
    name: one of `NAMES`.
    logical_cpus: split the CPU into so many devices and use those; None uses the GPUs, or
      the one CPU where there are none.
    tpu: name or address of the TPU, for `tpu`; 'local' on a TPU machine.
    devices_per_replica: how many devices a replica spans, see `replicator.step.logical_devices`.

  Raises:
    UsageError: unknown name, an unusable TF_CONFIG, no TPU, devices that cannot be split, or
      replicas of several devices where there are none.
  """
  if name not in NAMES:
    raise UsageError(f"Replicator.strategy = '{name}': no such strategy.{nearest(name, NAMES)} "
                     f"Write one of: {', '.join(NAMES)}")
  if devices_per_replica != 1:
    return _split(name, logical_cpus, devices_per_replica)
  if name in ("multi_worker_mirrored", "parameter_server"):
    cluster = read_tf_config(name)
    if logical_cpus is not None:
      raise UsageError(f"Replicator.logical_cpus = {logical_cpus}: '{name}' has one replica for "
                       "each process on CPUs; start more workers instead")
    if name == "parameter_server":
      return _parameter_server(cluster)
    return tf.distribute.MultiWorkerMirroredStrategy()
  if name == "tpu":
    return _tpu(tpu)
  devices = _devices(logical_cpus)
  if name == "default":
    return tf.distribute.get_strategy()
  # Mirroring one device would only wrap its variables.
  if name == "one_device" or (name == "mirrored" and len(devices) == 1):
    return tf.distribute.OneDeviceStrategy(devices[0])
  if name == "central_storage":
    return tf.distribute.experimental.CentralStorageStrategy(devices, parameter_device="/cpu:0")
  return tf.distribute.MirroredStrategy(devices, cross_device_ops=_cross_device_ops(devices))


def _devices(logical_cpus: int | None) -> list[str]:
  """Names of the devices to replicate over."""
  if logical_cpus is None:
    gpus = tf.config.list_logical_devices("GPU")
    return [f"/gpu:{i}" for i in range(len(gpus))] or ["/cpu:0"]
  if logical_cpus < 1:
    raise UsageError(f"Replicator.logical_cpus = {logical_cpus}: must be at least 1")
  cpu = tf.config.list_physical_devices("CPU")[0]
  if not tf.config.get_logical_device_configuration(cpu):
    try:
      tf.config.set_logical_device_configuration(
          cpu, [tf.config.LogicalDeviceConfiguration()] * logical_cpus)
    except RuntimeError as error:
      raise UsageError(f"Replicator.logical_cpus = {logical_cpus}: TensorFlow has already started "
                       "with one CPU device; make the Replicator before computing anything"
                       ) from error
  available = len(tf.config.list_logical_devices("CPU"))
  if available < logical_cpus:
    raise UsageError(f"Replicator.logical_cpus = {logical_cpus}: this process already runs with "
                     f"{available} logical CPUs; start a new one")
  return [f"/cpu:{i}" for i in range(logical_cpus)]


def _split(name: str, logical_cpus: int | None, count: int) -> tf.distribute.Strategy:
  """Replicas of `count` devices each, or one such replica for 'one_device'."""
  if not isinstance(count, int) or count < 1:
    raise UsageError(f"Replicator.devices_per_replica = {count!r}: must be a whole number of at "
                     "least 1")
  if name not in ("one_device", "mirrored"):
    raise UsageError(f"Replicator.devices_per_replica = {count}: works with 'mirrored' and "
                     f"'one_device', not with '{name}'; write one of those, or 1")
  devices = _devices(logical_cpus)
  if name == "one_device":
    devices = devices[:count]
  if len(devices) % count:
    raise UsageError(
        f"Replicator.devices_per_replica = {count}: {len(devices)} devices do not divide into "
        f"replicas of {count}; set Replicator.logical_cpus to a multiple of {count}, or use "
        f"a multiple of {count} GPUs")
  replicas = [devices[i:i + count] for i in range(0, len(devices), count)]
  return SplitStrategy(replicas, _cross_device_ops([of_replica[0] for of_replica in replicas]))


def _cross_device_ops(devices: list[str]) -> tf.distribute.CrossDeviceOps | None:
  # TensorFlow's own choice for CPUs is several times slower; for GPUs it is NCCL.
  return SumOnEveryDevice() if "cpu" in devices[0] else None


def _parameter_server(cluster: dict[str, Any]) -> tf.distribute.Strategy:
  """The chief's strategy; in a worker or parameter server process, serves until killed.

  TF-Replicator's hybrid has groups that are synchronous inside and asynchronous to each other. Here
  a group is one worker: TensorFlow runs a replica on each of its GPUs, in sync, and one replica on
  the CPU, however many logical devices that has. Groups of several workers are out of reach: to
  this strategy workers do not see each other. (Seen with two CPUs in place of a worker's GPUs; not
  run with GPUs yet.)
  """
  resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
  if cluster["task"]["type"] in ("worker", "ps"):
    parameter_server.serve(resolver)
  return tf.distribute.ParameterServerStrategy(resolver)


def _tpu(name: str | None) -> tf.distribute.Strategy:
  try:
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name or "")
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
  except (ValueError, tf.errors.OpError, OSError, RuntimeError) as error:
    reason = str(error).strip().splitlines()[0]
    raise UsageError(f"Replicator.strategy = 'tpu': no TPU here ({reason}); name one with "
                     "Replicator.tpu, or write another strategy") from error
  return tf.distribute.TPUStrategy(resolver)


def read_tf_config(strategy: str) -> dict[str, Any]:
  """Reads and checks TF_CONFIG for `multi_worker_mirrored` or `parameter_server`.

  Returns:
    `{"cluster": {type: [address]}, "task": {"type": str, "index": int}}`

  Raises:
    UsageError: it is missing, no JSON, or inconsistent.
  """
  launch = "python -m replicator.launch --workers=2 " + (
      "--ps=1 " if strategy == "parameter_server" else "") + "-- COMMAND"
  text = os.environ.get("TF_CONFIG")
  if not text:
    raise UsageError(f"Replicator.strategy = '{strategy}': the environment has no TF_CONFIG; "
                     f"start all processes with: {launch}")
  try:
    config = json.loads(text)
    cluster, task = config["cluster"], config["task"]
    kind, index = task["type"], task["index"]
    if not isinstance(cluster, dict):
      raise TypeError
  except json.JSONDecodeError as error:
    raise UsageError(f"TF_CONFIG is not JSON ({error}): {text!r}") from error
  except (KeyError, TypeError) as error:
    raise UsageError(f"TF_CONFIG is {text!r}; it must have the form "
                     '{"cluster": {"worker": ["host:port", ...]}, '
                     '"task": {"type": "worker", "index": 0}}') from error
  required = {"chief", "worker", "ps"} if strategy == "parameter_server" else {"worker"}
  _check_cluster(cluster, required, strategy)
  if not isinstance(kind, str) or kind not in cluster:
    raise UsageError(f"TF_CONFIG: task type '{kind}' is not in the cluster; it has: "
                     f"{', '.join(cluster)}")
  if not isinstance(index, int) or not 0 <= index < len(cluster[kind]):
    raise UsageError(f"TF_CONFIG: task index {index!r} is out of range; the cluster has "
                     f"{len(cluster[kind])} of type '{kind}', counted from 0")
  return config


def _check_cluster(cluster: Any, required: set[str], strategy: str) -> None:
  missing = required - set(cluster)
  if missing:
    raise UsageError(f"TF_CONFIG: '{strategy}' needs {', '.join(sorted(missing))} in the cluster, "
                     f"which has: {', '.join(cluster) or 'nothing'}")
  for kind, addresses in cluster.items():
    if not isinstance(addresses, list) or not all(
        isinstance(a, str) and re.fullmatch(r".+:\d{1,5}", a) and
        int(a.rpartition(":")[2]) < 65536 for a in addresses):
      raise UsageError(f"TF_CONFIG: cluster['{kind}'] must be a list of \"host:port\" strings, "
                       f"not {addresses!r}")


class SumOnEveryDevice(tf.distribute.ReductionToOneDevice):
  """Every device fetches the tensors of all replicas and adds them up, in the same order.

  One operation a device. TensorFlow's HierarchicalCopyAllReduce splits, adds up, joins and
  copies instead, and leaves the last of an odd number of devices out of the sum.
  """

  def batch_reduce_implementation(self, reduce_op: Any, value_destination_pairs: Any,
                                  options: Any) -> list:
    """Sums each; see `tf.distribute.CrossDeviceOps.batch_reduce_implementation`."""
    return [self.reduce_implementation(reduce_op, value, destinations, options)
            for value, destinations in value_destination_pairs]

  def reduce_implementation(self, reduce_op: Any, per_replica_value: Any, destinations: Any,
                            options: Any) -> Any:
    """The sum; see `tf.distribute.CrossDeviceOps.reduce_implementation`."""
    if destinations is not per_replica_value or any(
        not isinstance(x, tf.Tensor) for x in per_replica_value.values):
      return super().reduce_implementation(reduce_op, per_replica_value, destinations, options)
    sums = []
    for value in per_replica_value.values:
      with tf.device(value.device):
        total = tf.add_n(per_replica_value.values)
        sums.append(total / len(per_replica_value.values)
                    if reduce_op == tf.distribute.ReduceOp.MEAN else total)
    return mirrored(sums)
