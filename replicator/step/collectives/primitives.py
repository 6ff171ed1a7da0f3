"""The four moves of one tensor between the replicas of a step, each with its gradient.

    all_reduce      y_r = sum_s x_s     [...] -> [...]            dx = all_reduce(dy)
    all_gather      y_r[s] = x_s        [...] -> [replicas, ...]  dx = sum of all_to_all(dy)
    reduce_scatter  y_r = sum_s x_s[r]  [replicas, ...] -> [...]  dx = all_gather(dy)
    all_to_all      y_r[s] = x_s[r]     in and out [replicas, ...]  dx = all_to_all(dy)

All other collectives are built from these. Replicas that share memory read each other's tensors.
Other replicas use TensorFlow's collective operations: rings between CPUs, and NCCL between GPUs.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from replicator.internals import tensorflow_internals
from replicator.step import context
from replicator.step.hooks import Transfer

import tensorflow as tf


def all_reduce(x: tf.Tensor) -> tf.Tensor:
  """Sums a tensor over all replicas: `[...] -> [...]`."""
  return _moved("all_reduce", x, all_reduce)


def all_gather(x: tf.Tensor, of_parts: bool = False) -> tf.Tensor:
  """Stacks the tensors of all replicas: `[...] -> [replicas, ...]`.

  Set `of_parts` if they are the parts of a sharded value, which shrink as replicas are added.
  """
  return _moved("all_gather", x, lambda dy: tf.reduce_sum(all_to_all(dy), axis=0), of_parts)


def reduce_scatter(x: tf.Tensor) -> tf.Tensor:
  """Sums part r of the tensors of all replicas on replica r: `[replicas, ...] -> [...]`."""
  return _moved("reduce_scatter", x, all_gather)


def all_to_all(x: tf.Tensor) -> tf.Tensor:
  """Sends part s of the tensor to replica s: `[replicas, ...] -> [replicas, ...]`."""
  return _moved("all_to_all", x, all_to_all)


def _moved(move: str, x: tf.Tensor, gradient: Callable[[tf.Tensor], tf.Tensor],
           of_parts: bool = False) -> tf.Tensor:
  """Moves `x`; returns the result on this replica. `gradient` computes dx from dy."""
  size = x.shape.num_elements()
  transfer = Transfer(move, None if size is None else size * x.dtype.size,
                      context.num_replicas() if of_parts else None)
  for hook in context.current().hooks:
    hook.transferred(transfer)
  if context.current().is_apart:
    result = tf.compat.v1.placeholder(x.dtype)  # Nothing that depends on it can be computed apart.
  elif isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy):
    return _on_tpu(move, x)
  else:
    result = tf.distribute.get_replica_context().merge_call(functools.partial(_merged, move), (x,))
  result.set_shape([context.num_replicas(), *x.shape] if move == "all_gather" else
                   x.shape[1:] if move == "reduce_scatter" else x.shape)
  if not x.dtype.is_floating:
    return result
  # The gradient of `tf.gather` is an IndexedSlices.
  return tensorflow_internals.with_gradient(
      [result], [x], lambda dy: [gradient(tf.convert_to_tensor(dy))])[0]


# ---- Moves by strategy, for the tensors of all replicas of this process -------------------------


def _merged(move: str, strategy: tf.distribute.Strategy, x: Any) -> Any:
  devices = strategy.extended.worker_devices
  tensors = strategy.experimental_local_results(x)
  if len(tensors) < len(devices):  # A tensor that all replicas share is given once.
    tensors = tensors * len(devices)
  launchers = tensorflow_internals.collective_launchers(strategy)
  if not launchers:
    # On the tensors' own devices, which may not be the first logical devices of the replicas.
    devices = [x.device or device for device, x in zip(devices, tensors, strict=True)]
    return _per_replica(strategy, _in_memory(move, devices, tensors))
  if move == "reduce_scatter":  # Each replica sums the parts it receives.
    parts = tensorflow_internals.launched(launchers, "all_to_all", tensors)
    return _per_replica(strategy, [
        _on(device, _summed, x) for device, x in zip(devices, parts, strict=True)])
  if move != "all_reduce":
    return _per_replica(strategy, tensorflow_internals.launched(launchers, move, tensors))
  # The destinations of the sum are devices, and the arguments of a step have none.
  placed = _per_replica(strategy, [
      _on(device, tf.identity, x) for device, x in zip(devices, tensors, strict=True)])
  return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, [(placed, placed)])[0]


def _per_replica(strategy: tf.distribute.Strategy, tensors: Sequence[tf.Tensor]) -> Any:
  """Makes a per-replica value from one tensor for each replica of this process."""
  return strategy.experimental_distribute_values_from_function(
      lambda replica: tensors[replica.replica_id_in_sync_group % len(tensors)])


def _in_memory(move: str, devices: Sequence[str], tensors: Sequence[tf.Tensor]
               ) -> list[tf.Tensor]:
  """Moves tensors between devices that share memory or copy from each other."""
  if move in ("all_to_all", "reduce_scatter"):
    parts = [tf.unstack(x) for x in tensors]
    join = tf.stack if move == "all_to_all" else tf.add_n
    return [_on(device, join, of_replica)
            for device, *of_replica in zip(devices, *parts, strict=True)]
  # Computed once and read by all, so the work grows with the number of replicas, not its square.
  result = _on(devices[0], tf.add_n if move == "all_reduce" else tf.stack, tensors)
  return [result] * len(devices)


def _on(device: str, function: Callable, x: Any) -> tf.Tensor:
  with tf.device(device):
    return function(x)


def _summed(x: tf.Tensor) -> tf.Tensor:
  return tf.reduce_sum(x, axis=0)


def _on_tpu(move: str, x: tf.Tensor) -> tf.Tensor:
  """Moves `x` by a sum over replicas, which TensorFlow differentiates and compiles for TPUs."""
  replica, count = tf.distribute.get_replica_context(), context.num_replicas()
  if move in ("all_reduce", "reduce_scatter"):
    total = replica.all_reduce(tf.distribute.ReduceOp.SUM, x)
    return total if move == "all_reduce" else tf.gather(total, context.replica_id())
  slots = in_slot(x, context.replica_id(), count)
  gathered = replica.all_reduce(tf.distribute.ReduceOp.SUM, slots)
  return gathered if move == "all_gather" else tf.gather(gathered, context.replica_id(), axis=1)


def in_slot(x: tf.Tensor, number: int | tf.Tensor, slots: int) -> tf.Tensor:
  """Returns a tensor `[slots, ...]` with x in slot `number` and zeros elsewhere."""
  own = tf.reshape(tf.equal(tf.range(slots), number), [slots] + [1] * x.shape.rank)
  return tf.where(own, x[tf.newaxis], tf.zeros_like(x)[tf.newaxis])
