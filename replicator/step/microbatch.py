"""Divides a replica's batch, to accumulate gradients or to make several updates."""

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

from replicator.errors import UsageError
from replicator.internals.compiled_functions import NeedsPlaceholder, computed_apart
from replicator.step import context
from replicator.step.collectives import collectives
from replicator.step.nest import Nest, map_tensors

import gin
import numpy as np
import tensorflow as tf
import tree


@gin.configurable(module="replicator", denylist=["fn", "batch"])
def microbatch(fn: Callable[[Nest], Nest], batch: Nest, n: int = 1) -> Nest:
  """Computes `fn(batch)` from `n` equal micro-batches, one after the other (gradient accumulation).

  The activations of each micro-batch are freed before those of the next are computed, so peak
  memory falls with n. The optimizer makes one collective for any n:

      loss, gradients = replicator.microbatch(
          lambda part: optimizer.loss_and_gradients(loss_fn, part), batch)
      optimizer.apply(gradients)

  The result equals that of the full batch if `fn` returns means over examples, such as losses and
  their gradients, and each example's output depends only on that example. Random streams make the
  same draws as for the full batch, and `SpectralNorm` iterates once. `GlobalBatchNorm` uses the
  statistics of one micro-batch over all replicas, so n micro-batches give the same result on any
  number of replicas.

  The micro-batches run in a loop, whose graph does not grow with n. If `fn` calls a collective, as
  `GlobalBatchNorm` does on several replicas, they are unrolled, because a loop cannot contain one.

  Args:
    fn: called with a micro-batch; returns a nest of floating tensors `[...]`, each a mean over the
      examples, or None.
    batch: a nest of tensors `[b, ...]`. Micro-batch j has the examples j, j + n, j + 2n, ..., so
      over all replicas it has the same examples for any number of replicas. Scalars and non-tensors
      are the same in every micro-batch.
    n: the number of micro-batches; usually set in a gin file, `microbatch.n = 4`.

  Returns:
    The mean over the micro-batches of each tensor that `fn` returns, in the same nest and dtypes.

  Raises:
    UsageError: n does not divide the batch, `fn` returns integers, or calls are nested.
  """
  if not isinstance(n, int) or n < 1:
    raise UsageError(f"microbatch.n = {n!r}: must be a whole number of at least 1")
  step = context.current()
  if n == 1 or step.in_one_piece:
    return fn(batch)
  _check(batch, n)
  step.microbatch = part = context.Microbatch(count=n)
  try:
    return _mean(fn, batch, step, part)
  finally:
    step.microbatch = None


def has_examples(value: Any) -> bool:
  """Returns whether a value is a tensor `[b, ...]`, with an axis of examples."""
  return (tf.is_tensor(value) or isinstance(value, np.ndarray)) and bool(
      tf.TensorShape(value.shape).rank)


def split(batch: Nest, parts: int) -> list[Nest]:
  """Divides a replica's batch into equal parts, for several updates in one step.

  A step whose attribute `batches` equals the number of parts gets a batch of
  `train.global_batch_size` for each. Part j has the examples j, j + parts, j + 2 parts, ..., so
  over all replicas it has the same examples for any number of replicas.

  Args:
    batch: a nest of tensors `[b, ...]`.
    parts: the number of parts.

  Returns:
    `parts` nests of tensors `[b / parts, ...]`.

  Raises:
    UsageError: the batch does not divide by `parts`.
  """
  size = tree.flatten(batch)[0].shape[0]
  if size % parts:
    raise UsageError(f"a replica's batch of {size} examples does not divide into {parts} equal "
                     f"parts; give the step an attribute batches = {parts}, so that it gets a "
                     "batch of train.global_batch_size for each part")
  if parts == 1:
    return [batch]
  context.current().division.note(size // parts)
  return [tree.map_structure(lambda x, j=j: x[j::parts], batch) for j in range(parts)]


def _mean(fn: Callable[[Nest], Nest], batch: Nest, step: context.StepContext,
          part: context.Microbatch) -> Nest:
  """Averages what `fn` returns over the micro-batches; `part` describes each in turn."""
  # [b, ...] -> [b / n, n, ...]: row i of micro-batch j is example i n + j.
  rows = _of_examples(
      lambda x: tf.reshape(x, [x.shape[0] // part.count, part.count, *x.shape[1:]]), batch)
  draws, outside, collectives_before = step.draws.copy(), step.graph, len(step.collectives)

  @functools.cache
  def weights() -> list[tf.Tensor]:  # Called first by the first micro-batch.
    nonlocal collectives_before
    own, before = _weights_of_means(fn, batch, step, draws), len(step.collectives)
    total = collectives.all_sum(own)
    collectives_before += len(step.collectives) - before
    return total

  part.weights = weights

  def outputs_of(index: int | tf.Tensor) -> Nest:
    part.index, part.replayed, part.means = index, 0, 0
    part.is_first = isinstance(index, int) and index == 0
    step.draws = draws.copy()  # Every micro-batch makes the same draws, of different rows.
    own = _of_examples(lambda x: tf.gather(x, index, axis=1), rows)
    return map_tensors(tf.convert_to_tensor, fn(own))

  def add(index: int | tf.Tensor, sums: list[tf.Tensor]) -> list[tf.Tensor]:
    return [total + x for total, x in zip(sums, _summands(outputs_of(index)), strict=True)]

  def body(index: tf.Tensor, sums: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
    step.graph = tf.compat.v1.get_default_graph()
    return index + 1, add(index, sums)

  first = outputs_of(0)
  sums = _summands(first)
  if len(step.collectives) > collectives_before or tf.executing_eagerly():
    for index in range(1, part.count):
      # In sequence: in parallel, they would need the memory of the full batch.
      with tf.control_dependencies(sums):
        sums = add(index, sums)
  else:
    try:
      sums = tf.while_loop(lambda index, _: index < part.count, body, [1, sums],
                           parallel_iterations=1)[1]
    finally:
      step.graph = outside
  means = iter([total / part.count for total in sums])
  return map_tensors(lambda x: tf.cast(next(means), x.dtype), first)


def _weights_of_means(fn: Callable[[Nest], Nest], batch: Nest, step: context.StepContext,
                      draws: Counter[str]) -> list[tf.Tensor]:
  """Returns the sum of the mask of each `mean` in `fn`, [], over this replica's whole batch."""
  def trace() -> list[tf.Tensor]:
    whole = context.Microbatch(count=1)
    vars(step).update(microbatch=whole, graph=tf.compat.v1.get_default_graph(), hooks=(),
                      draws=draws.copy(), collectives=[], is_apart=True)
    fn(batch)
    return whole.own_weights

  before = vars(step).copy()
  try:
    if tf.executing_eagerly():
      return tf.function(lambda: computed_apart(trace), autograph=False).get_concrete_function()()
    return computed_apart(trace)
  except NeedsPlaceholder as error:
    raise UsageError("mean: in micro-batches, the mask must not depend on a collective, such as "
                     "the one in GlobalBatchNorm; compute the mask beforehand, and pass it to "
                     "microbatch") from error
  finally:
    vars(step).update(before)


def _of_examples(function: Callable[[tf.Tensor], tf.Tensor], batch: Nest) -> Nest:
  return tree.map_structure(lambda x: function(x) if has_examples(x) else x, batch)


def _summands(outputs: Nest) -> list[tf.Tensor]:
  """Returns the tensors of a nest, with float16 and bfloat16 cast to float32."""
  flat = [x for x in tree.flatten(outputs) if x is not None]
  for x in flat:
    if not x.dtype.is_floating:
      raise UsageError(f"microbatch: fn returned a tensor of dtype {x.dtype.name} and shape "
                       f"{x.shape}; return floating-point means over examples")
  return [tf.cast(x, tf.float32) if x.dtype.size < 4 else x for x in flat]


def _check(batch: Nest, n: int) -> None:
  if context.current().microbatch is not None:
    raise UsageError("microbatch: called inside the fn of another microbatch; divide the "
                     "batch only once")
  sizes = {x.shape[0] for x in tree.flatten(batch) if has_examples(x)}
  if len(sizes) != 1:
    raise UsageError(f"microbatch.n = {n}: the tensors of a batch must have the same number of "
                     f"examples on their first axis, not {sorted(sizes)}; let the function capture "
                     "tensors that do not hold examples, instead of passing them as arguments")
  size = sizes.pop()
  context.current().division.note(size // n, is_microbatched=True)
  if size % n:
    raise UsageError(f"microbatch.n = {n}: does not divide a replica's batch of {size} examples; "
                     f"choose a divisor, or a train.global_batch_size that is a multiple of "
                     f"replicas x {n}")
