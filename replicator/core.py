"""The Replicator: runs a step function on every replica, synchronously or not."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import gin
import keras
import numpy as np
import tensorflow as tf
import tree

from replicator import collectives, context
from replicator import strategy as strategies
from replicator.errors import UsageError

Nest = Any
Step = Callable[..., Nest]


@gin.configurable
class Replicator:
  """Runs one replica step function under the strategy that a gin file names.

  Args:
    strategy: one of `replicator.strategy.NAMES`.
    logical_cpus: split the CPU into so many devices and replicate over those.
    tpu: name or address of the TPU, for the strategy 'tpu'.
    jit_compile: compile the step with XLA; for one replica. Worth it for networks of small
      matrices; on CPUs XLA is slower than the default for convolutions.

  Raises:
    UsageError: see `replicator.strategy.make`; or `jit_compile` with several replicas.
  """

  def __init__(self, strategy: str = "default", logical_cpus: int | None = None,
               tpu: str | None = None, jit_compile: bool = False):
    self.name = strategy
    self.strategy = strategies.make(strategy, logical_cpus, tpu)
    self.num_replicas: int = self.strategy.num_replicas_in_sync
    self.is_async = strategy == "parameter_server"
    self.jit_compile = jit_compile
    if jit_compile and (self.is_async or self.num_replicas > 1):
      raise UsageError(f"Replicator.jit_compile = True: works with one replica, not with "
                       f"'{strategy}' on {self.num_replicas}; drop one of the two")
    self._steps_run = 0
    self._compiled: dict[Step, Callable] = {}
    self._coordinator = (tf.distribute.coordinator.ClusterCoordinator(self.strategy)
                         if self.is_async else None)

  @property
  def num_workers(self) -> int:
    """How many processes run steps."""
    if self.is_async:
      return self.strategy._num_workers
    return max(1, self.num_replicas // self.num_local_replicas)

  @property
  def worker_id(self) -> int:
    """The number of this process among those that run the training loop; 0 is the chief."""
    resolver = self.strategy.cluster_resolver
    return resolver.task_id or 0 if self.name == "multi_worker_mirrored" and resolver else 0

  @property
  def num_pipelines(self) -> int:
    """How many processes read inputs, each its part of the global batch."""
    return 1 if self.is_async else self.num_workers

  @property
  def max_running(self) -> int:
    """How many calls may be under way: enough to keep asynchronous workers busy.

    Workers of one synchronous run look at every result, to learn whether one must stop.
    """
    return 2 * self.num_workers if self.is_async else 8 if self.num_workers == 1 else 0

  @property
  def num_local_replicas(self) -> int:
    """How many of the replicas belong to this process."""
    if self.name == "multi_worker_mirrored":
      return len(self.strategy.extended.worker_devices)
    return self.num_replicas

  @contextlib.contextmanager
  def scope(self) -> Iterator[None]:
    """Variables created inside are replicated; networks and optimizers are built here."""
    with self.strategy.scope():
      yield

  def run(self, step_fn: Step, inputs: Nest | None = None) -> list[Nest]:
    """Runs `step_fn` once on every replica.

    May be called any number of times with different functions, each of which is compiled once.

    Args:
      step_fn: called on each replica with its part of `inputs`, or with nothing.
      inputs: this worker's part of the global batch, a nest of `[n, ...]`; its first axis is
        split over the worker's replicas.

    Returns:
      what `step_fn` returned, one nest for each replica of this process; a remote value, to be
      `fetch`ed, where replication is asynchronous.

    Raises:
      UsageError: n does not divide by the replicas.
    """
    if step_fn not in self._compiled:
      self._compiled[step_fn] = self._function(
          lambda step, arguments: self._on_replicas(step_fn, step, arguments))
    arguments = () if inputs is None else (self.distribute(inputs),)
    step = tf.constant(self._steps_run, tf.int64)
    self._steps_run += 1
    if self._coordinator:
      return [self._coordinator.schedule(self._compiled[step_fn], args=(step, arguments))]
    return self._local_results(self._compiled[step_fn](step, arguments))

  def training_function(self, step_fn: Step, steps_per_call: int) -> "TrainingFunction":
    """Compiles `steps_per_call` steps into one call, for training loops."""
    return TrainingFunction(self, step_fn, steps_per_call)

  def fetch(self, value: Any) -> Any:
    """The value of a result, waiting for it where it is still being computed."""
    return value.fetch() if hasattr(value, "fetch") else value

  def join(self) -> None:
    """Waits for all scheduled steps; a no-op where replication is synchronous."""
    if self._coordinator:
      self._coordinator.join()

  def distribute(self, inputs: Nest, axis: int = 0) -> Nest:
    """Splits `axis` of each tensor over this process's replicas.

    Raises:
      UsageError: the axis does not divide by the replicas.
    """
    replicas = self.num_local_replicas
    sizes = {x.shape[axis] for x in tree.flatten(inputs)}
    if len(sizes) > 1:
      raise UsageError(f"inputs: the tensors of a batch must agree on axis {axis}, "
                       f"which has {sorted(sizes)} examples")
    size = sizes.pop()
    if size % replicas:
      raise UsageError(f"inputs: a batch of {size} examples does not divide by {replicas} "
                       f"replicas; write a multiple of {replicas}")
    if replicas == 1:
      return tree.map_structure(tf.convert_to_tensor, inputs)
    share = size // replicas

    def part(value_context):
      first = value_context.replica_id_in_sync_group % replicas * share
      rows = (slice(None),) * axis + (slice(first, first + share),)
      return tree.map_structure(lambda x: tf.convert_to_tensor(x[rows]), inputs)

    return self.strategy.experimental_distribute_values_from_function(part)

  def _function(self, function: Callable) -> Callable:
    # A step is TensorFlow operations under plain Python control: what runs eagerly line by
    # line is what is compiled, with no rewriting of the user's source in between.
    return tf.function(function, autograph=False, jit_compile=self.jit_compile or None)

  def _on_replicas(self, step_fn: Step, step: tf.Tensor, arguments: tuple) -> Nest:
    def replica_fn(step, *arguments):
      with context.entered(step):
        return step_fn(*arguments)
    if self.jit_compile:  # XLA does not compile through tf.distribute; one replica needs none.
      return replica_fn(step, *arguments)
    return self.strategy.run(replica_fn, args=(step, *arguments))

  def _local_results(self, outputs: Nest) -> list[Nest]:
    by_leaf = [self.strategy.experimental_local_results(leaf) for leaf in tree.flatten(outputs)]
    count = max((len(leaf) for leaf in by_leaf), default=1)
    return [tree.unflatten_as(outputs, [leaf[i] for leaf in by_leaf]) for i in range(count)]


class TrainingFunction:
  """Several steps in one compiled call; made by `Replicator.training_function`.

  Calling it as `f(first_step, inputs, stop)` starts the steps and returns what `Replicator.fetch`
  turns into `({name: [steps_per_call]}, stop)`: the step's scalars averaged over replicas, and
  whether any worker's `stop` was true. `inputs` is None or a nest of
  `[steps_per_call, n, ...]`, this worker's part of the batches.
  """

  def __init__(self, replicator: Replicator, step_fn: Step, steps_per_call: int):
    self._replicator = replicator
    self._step_fn = step_fn
    self._steps_per_call = steps_per_call
    self._names: list[str] = []
    self._function = replicator._function(self._steps)
    self._arguments: tuple = ()

  def __call__(self, first_step: int, inputs: Nest | None, stop: bool = False) -> "_Result":
    distributed = () if inputs is None else (self._replicator.distribute(inputs, axis=1),)
    arguments = (tf.constant(first_step, tf.int64), tf.constant(stop), distributed)
    self._arguments = self._arguments or arguments
    if self._replicator.is_async:
      return _Result(self._names, self._replicator._coordinator.schedule(self._function, arguments))
    return _Result(self._names, self._function(*arguments))

  def variables(self) -> list[tf.Variable]:
    """The variables that the steps use; valid after the first call."""
    return list(self._function.get_concrete_function(*self._arguments).graph.variables)

  def _steps(self, first_step: tf.Tensor, stop: tf.Tensor, arguments: tuple) -> tf.Tensor:
    """Returns `[steps_per_call, 1 + number of scalars]`; column 0 is the wish to stop."""
    floatx = keras.config.floatx()
    if self._steps_per_call == 1:
      history = self._one_step(first_step, 0, arguments)[tf.newaxis]
    else:
      history = tf.while_loop(
          lambda i, _: i < self._steps_per_call,
          lambda i, history: (i + 1, history.write(
              i, self._one_step(first_step + tf.cast(i, tf.int64), i, arguments))),
          [0, tf.TensorArray(floatx, self._steps_per_call)])[1].stack()
    history = tf.concat([tf.fill([self._steps_per_call, 1], tf.cast(stop, floatx)), history], 1)
    if self._replicator.num_pipelines > 1:
      history = self._replicator._local_results(
          self._replicator.strategy.run(collectives.all_mean, args=(history,)))[0]
    return history

  def _one_step(self, step: tf.Tensor, i: tf.Tensor | int, arguments: tuple) -> tf.Tensor:
    """The scalars of step `step`, the i-th of this call, averaged over this process's replicas."""
    def scalars(*stacked):
      outputs = _checked_scalars(self._step_fn(*tree.map_structure(lambda x: x[i], stacked)))
      self._names[:] = list(outputs)
      # One vector: one tensor to carry, and one collective to average.
      return tf.stack([tf.cast(value, keras.config.floatx()) for value in outputs.values()])
    replicator = self._replicator
    local = replicator._local_results(replicator._on_replicas(scalars, step, arguments))
    return tf.add_n(local) / len(local)


class _Result:
  """The outcome of a call of a `TrainingFunction`, perhaps still being computed."""

  def __init__(self, names: list[str], history: Any):
    self._names = names
    self._history = history

  def fetch(self) -> tuple[dict[str, np.ndarray], bool]:
    history = self._history
    values = history.fetch() if hasattr(history, "fetch") else history.numpy()
    return dict(zip(self._names, values.T[1:], strict=True)), bool(values[0, 0] > 0)


def _checked_scalars(outputs: Any) -> dict[str, tf.Tensor]:
  if not isinstance(outputs, dict) or not outputs:
    raise UsageError("the step must return a non-empty dict of scalars to log, such as "
                     f"{{'loss': loss}}, not {type(outputs).__name__}")
  for name, value in outputs.items():
    value = tf.convert_to_tensor(value)
    if value.shape.rank != 0:
      raise UsageError(f"the step returned '{name}' of shape {value.shape}; return a scalar, "
                       "such as its tf.reduce_mean over the replica's examples")
  return outputs
