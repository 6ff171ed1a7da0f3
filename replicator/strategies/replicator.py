"""The Replicator: runs a step function on every replica, synchronously or not."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from replicator.errors import RunFailed, UsageError, chain_of
from replicator.internals.tensorflow_internals import tell_others
from replicator.step import context
from replicator.step.collectives import collectives
from replicator.step.nest import Nest
from replicator.strategies import agreement, parameter_server, xla_support
from replicator.strategies import strategy as strategies
from replicator.strategies.cluster import lost, tf_config
from replicator.strategies.compiled_step import CompiledStep
from replicator.strategies.hang_detector import HangDetector
from replicator.strategies.tracing import graphs

import gin
import numpy as np
import tensorflow as tf
import tree

Step = Callable[..., Nest]

_replaced: dict[str, Any] = {}


@contextlib.contextmanager
def replaced(**arguments: Any) -> Iterator[None]:
  """Overrides the arguments of every `Replicator` created in the body.

  Commands such as the doctor use it to run a program under a different strategy.
  """
  global _replaced
  before, _replaced = _replaced, arguments
  try:
    yield
  finally:
    _replaced = before


@gin.configurable(module="replicator")
class Replicator:
  """A runner of per-replica step functions under a configurable distribution strategy.

  A step is written for one replica (Buchlovsky et al. 2019, arXiv:1902.00465, "TF-Replicator"):

      replicator = Replicator("mirrored")
      with replicator.scope():
        step = MyStep()  # Builds networks and optimizers.
      outputs = replicator.run(step, batch)  # What `step` returned on each replica.

  Args:
    strategy: one of `replicator.strategies.strategy.NAMES`.
    logical_cpus: the number of devices to split the CPU into, with a replica on each. None uses all
      GPUs, or the CPU as one device if there are none.
    tpu: the name or address of the TPU, for the strategy 'tpu'.
    jit_compile: whether XLA compiles the step; with several replicas, it compiles each part of the
      step between two collectives. None compiles on GPUs, if XLA can. On CPUs, XLA pays off for
      small matrices but is slower for convolutions, which several replicas run without it.
    devices_per_replica: the number of devices that each replica spans. A step places its parts
      with `replicator.logical_device`.
    cluster: where the list of a run's processes comes from, one of
      `strategies.cluster.tf_config.MANAGERS`. 'tf_config' reads the variable TF_CONFIG, as do 'ray'
      and 'spark' in a process that they started. 'slurm', 'kubernetes' and 'sagemaker' read the
      variables of these managers. 'auto' uses the first source that is present.
    servers: the number of parameter servers, for managers that only number the processes. The first
      process is the chief, and the servers come after it.
    worker_timeout: the seconds without a heartbeat after which a worker of 'multi_worker_mirrored'
      counts as lost, which ends the others.
    join_timeout: the seconds within which all workers must start.
    stuck_timeout: the seconds after which workers stop waiting for one that is alive but stuck. Set
      it above the time that an evaluation, a save or the compilation of a step takes, since workers
      also wait during those. None waits forever.

  Attributes:
    name, manager: the arguments `strategy` and `cluster`.
    strategy: the `tf.distribute.Strategy`.
    num_replicas: the number of replicas that run a step together, over all workers.
    is_async: whether workers run steps independently, as under 'parameter_server'.
    jit_compile: whether XLA compiles the step.
    may_drop_xla: whether a step that XLA cannot compile runs without it.
    compiles_parts: whether XLA compiles each part of the step between two collectives.
    servers: the cluster of an asynchronous strategy, or None.

  Raises:
    UsageError: the strategy cannot be made (see `replicator.strategies.strategy.make`), or XLA
      cannot compile under it or for several devices per replica.
  """

  def __init__(self, strategy: str = "default", logical_cpus: int | None = None,
               tpu: str | None = None, jit_compile: bool | None = None,
               devices_per_replica: int = 1, cluster: str = "auto", servers: int = 1,
               worker_timeout: float = 10.0, join_timeout: float = 600.0,
               stuck_timeout: float | None = None):
    given = {"strategy": strategy, "logical_cpus": logical_cpus, "tpu": tpu, "cluster": cluster,
             "jit_compile": jit_compile, "devices_per_replica": devices_per_replica}
    strategy, logical_cpus, tpu, cluster, jit_compile, devices_per_replica = {
        **given, **_replaced}.values()
    may_compile = xla_support.checked(jit_compile, strategy, devices_per_replica)
    self.is_async = strategy == "parameter_server"
    if self.is_async:  # The coordinator's threads read the option before a step is traced.
      graphs.keep_order()
    self.name, self.manager = strategy, cluster
    self.strategy = strategies.make(strategy, logical_cpus, tpu, devices_per_replica, cluster,
                                    servers, worker_timeout, join_timeout)
    context.run.strategy = self.strategy
    self.num_replicas: int = self.strategy.num_replicas_in_sync
    self.jit_compile: bool = may_compile and (
        jit_compile or xla_support.uses_gpus(self.strategy))
    self.compiles_parts = self.jit_compile and self.num_replicas > 1
    self.may_drop_xla = jit_compile is None and self.compiles_whole
    if self.compiles_parts:
      graphs.keep_unfused()
    self._stuck_timeout = stuck_timeout
    self._steps_run = 0
    self.calls_traced: list[str] = []  # The collectives of the last traced step.
    self._compiled: dict[Step, CompiledStep] = {}
    self.servers = (parameter_server.ParameterServers(self.strategy) if self.is_async else None)

  @property
  def compiles_whole(self) -> bool:
    """Whether XLA compiles the step as one program, which needs a single replica."""
    return self.jit_compile and self.num_replicas == 1

  @property
  def num_workers(self) -> int:
    """The number of processes that run steps."""
    if self.servers:
      return self.servers.num_workers
    return max(1, self.num_replicas // self.num_local_replicas)

  @property
  def worker_id(self) -> int:
    """The number of this process among those that run the training loop; 0 is the chief."""
    if self.name != "multi_worker_mirrored":
      return 0
    resolver = self.strategy.cluster_resolver
    return tf_config.worker_number(self._cluster, resolver.task_type, resolver.task_id)

  @property
  def num_pipelines(self) -> int:
    """The number of processes that read inputs, each for its part of the global batch."""
    return 1 if self.is_async else self.num_workers

  @property
  def max_running(self) -> int:
    """The number of calls that may be in flight: enough to keep asynchronous workers busy.

    Workers of a synchronous run wait for every result, to agree on when to stop.
    """
    return 2 * self.num_workers if self.is_async else 8 if self.num_workers == 1 else 0

  @property
  def num_local_replicas(self) -> int:
    """The number of replicas in this process."""
    if self.name == "multi_worker_mirrored":
      return len(self.strategy.extended.worker_devices)
    return self.num_replicas

  @contextlib.contextmanager
  def scope(self) -> Iterator[None]:
    """Replicates the variables created in the body; build networks and optimizers in it."""
    spread = self.servers.spread() if self.servers else contextlib.nullcontext()
    with spread, self.strategy.scope():
      yield

  def run(self, step_fn: Step, inputs: Nest | None = None) -> list[Nest]:
    """Runs `step_fn` once on every replica.

    `run` may be called any number of times, with different functions. Each is compiled once per
    batch shape, and again when its `trainable` flags change.

    Args:
      step_fn: called on each replica with the replica's part of `inputs`, or with no arguments.
      inputs: this worker's part of the global batch, a nest of arrays or tensors `[n, ...]`. The
        first axis is split over the worker's replicas.

    Returns:
      The outputs of `step_fn`, one nest for each replica of this process. Under an asynchronous
      strategy, one remote value, whose `fetch()` waits for the result.

    Raises:
      UsageError: n is not divisible by the number of local replicas, two optimizers own a variable,
        the strategy cannot update a variable of the step, or `run` is called inside a step.
    """
    if context.current().is_step:
      raise UsageError("Replicator.run: called inside a step, which already runs on every replica; "
                       "call the function directly, or run it after the step")
    self._steps_run += 1
    return self._run(step_fn, inputs, self._steps_run - 1)

  def joined(self, values: Nest) -> Nest:
    """Joins the arrays of all workers: `[num_local_replicas, ...] -> [num_replicas, ...]`.

    All workers must call it together. It does not count as a step, so it changes no later draws.
    """
    return tree.map_structure(lambda x: x.numpy(), self._run(collectives.all_concat, values, 0)[0])

  def by_worker(self, value: float) -> np.ndarray:
    """Gathers a value from every training worker: `[num_pipelines]`; all of them must call it."""
    if self.num_pipelines == 1:
      return np.array([value])
    return self.joined(np.repeat(value, self.num_local_replicas))[::self.num_local_replicas]

  def _run(self, step_fn: Step, inputs: Nest | None, number: int) -> list[Nest]:
    if step_fn not in self._compiled:
      self._compiled[step_fn] = CompiledStep(self, step_fn)
    compiled, could = self._compiled[step_fn], self.may_drop_xla
    outputs = compiled(number, inputs).outputs
    if could and not self.may_drop_xla:
      warnings.warn(compiled.without_xla, stacklevel=3)
    return [outputs] if self.is_async else outputs

  def join(self) -> None:
    """Waits for all scheduled steps; does nothing under a synchronous strategy."""
    if self.servers:
      self.servers.coordinator.join()

  def checked_batch(self, inputs: Nest, axis: int = 0) -> Nest:
    """Returns the inputs as tensors; raises a UsageError unless replicas can split them evenly."""
    replicas = self.num_local_replicas
    leaves = tree.flatten(inputs)
    if not leaves or any(len(getattr(x, "shape", ())) <= axis or isinstance(
        x, tf.RaggedTensor | tf.SparseTensor) for x in leaves):
      raise UsageError("inputs: a batch must be a nest of arrays or tensors [n, ...]")
    sizes = {x.shape[axis] for x in leaves}
    if len(sizes) > 1:
      raise UsageError("inputs: the tensors of a batch must have the same number of examples on "
                       f"axis {axis}, not {sorted(sizes)}")
    size = sizes.pop()
    if size % replicas:
      raise UsageError(f"inputs: a batch of {size} examples does not divide evenly among "
                       f"{replicas} replicas; use a multiple of {replicas}")
    return tree.map_structure(tf.convert_to_tensor, inputs)

  def distribute(self, inputs: Nest, axis: int = 0) -> Nest:
    """Splits `axis` of each tensor over the replicas of this process."""
    replicas = self.num_local_replicas
    if replicas == 1:
      return inputs
    with tf.device("/cpu:0"):  # Batches are on the host; each device gets only its part.
      parts = [tf.split(x, replicas, axis) for x in tree.flatten(inputs)]
    return self.strategy.experimental_distribute_values_from_function(
        lambda replica: tree.unflatten_as(
            inputs, [of[replica.replica_id_in_sync_group % replicas] for of in parts]))

  def start(self, compiled: Callable, *arguments: Nest) -> Any:
    """Calls a compiled function; returns a remote value under an asynchronous strategy."""
    if self.servers:
      scheduled = self.servers.coordinator.schedule(compiled, args=arguments)
      return parameter_server.RemoteValue(scheduled)
    with self._on_its_device():
      return compiled(*arguments)

  def _on_its_device(self) -> contextlib.AbstractContextManager:
    """Places a step that XLA compiles whole, which would otherwise run on any available GPU."""
    if self.compiles_whole and isinstance(self.strategy, tf.distribute.OneDeviceStrategy):
      return tf.device(self.strategy.extended.worker_devices[0])
    return contextlib.nullcontext()

  def detect_hangs(self) -> HangDetector:
    """Returns a detector that limits how long this worker waits for the others."""
    is_cluster = self.name == "multi_worker_mirrored"
    return HangDetector(self._cluster if is_cluster else {}, self.worker_id, self._stuck_timeout)

  @property
  def _cluster(self) -> dict[str, list[str]]:
    return self.strategy.cluster_resolver.cluster_spec().as_dict()

  @contextlib.contextmanager
  def lost_workers_named(self) -> Iterator[None]:
    """Raises RunFailed with the name of the worker whose loss caused an error in the body."""
    try:
      yield
    except Exception as error:
      cause = chain_of(error)[-1]
      if self.name == "multi_worker_mirrored" and isinstance(cause, tf.errors.OpError) and (
          said := lost.failure(str(cause), self._cluster)):
        message, news = said
        tell_others(news)  # Otherwise they would blame this process, which ends too.
        raise RunFailed(message) from error
      raise

  def check_workers_agree(self) -> None:
    """Compares the collectives of the last traced step with those of the other workers.

    Raises:
      UsageError: they differ, so running the step would hang.
    """
    agreement.check_workers(self.worker_id, self.num_pipelines, list(self.calls_traced))

  def local_results(self, outputs: Nest) -> list[Nest]:
    """Converts the outputs of `strategy.run` to one nest for each replica of this process."""
    by_leaf = [self.strategy.experimental_local_results(leaf) for leaf in tree.flatten(outputs)]
    # A leaf that is not a tensor, or is the same tensor on every replica, comes back once.
    return [tree.unflatten_as(outputs, [leaf[i % len(leaf)] for leaf in by_leaf])
            for i in range(self.num_local_replicas)]
