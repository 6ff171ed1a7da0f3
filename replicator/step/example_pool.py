"""A pool of past examples that all replicas share: a history to draw from, or a queue."""

from collections.abc import Sequence

from replicator.errors import UsageError
from replicator.step import context, random, replicated
from replicator.step.collectives import collectives

import keras
import tensorflow as tf


class ExamplePool(tf.Module):
  """A pool of examples from earlier steps, the same on every replica: a history or a queue.

  CycleGAN trains its discriminators on a history of generated images (Shrivastava et al. 2017), and
  MoCo contrasts with a queue of encoded images (He et al. 2020). Create the pool in a step's
  constructor:

      self.pool = replicator.ExamplePool(50, [64, 64, 3])
      shown = self.pool.exchange(fakes)      # about half of them are past images

      self.queue = replicator.ExamplePool(65536, [128])
      past, is_filled = self.queue.past()
      self.queue.append(keys)                # the newest replace the oldest

  Examples enter in the order of the global batch, and a step reads the pool as it was before the
  step. So the pool is the same for any number of replicas and micro-batches, and a resumed run
  continues it exactly. Gradients do not flow through it.

  Every replica has a copy. Adding examples takes a collective that gathers them, and rewrites the
  whole pool. Under 'parameter_server' the workers share one pool, and overlapping steps may
  overwrite each other's examples.

  Args:
    size: the number of examples the pool holds.
    shape: the shape of one example.
    dtype: the dtype of the pool; None is float64 in a float64 run and float32 otherwise.
    stream: the stream of `replicator.random` from which `exchange` draws.

  Attributes:
    examples: [size, *shape], zeros where the pool is not filled yet.
    entered: int64 [size], for each position the index of its example among all that were passed in;
      -1 if the position is empty.
    count: int64 [], the number of examples passed in so far.

  Raises:
    UsageError: the size is not positive; or examples do not fit the pool, or are passed in from a
      branch or loop of the step.
  """

  def __init__(self, size: int, shape: Sequence[int], dtype: str | tf.DType | None = None,
               stream: str = "pool"):
    super().__init__()
    if not isinstance(size, int) or size < 1:
      raise UsageError(f"ExamplePool: size = {size!r}: must be the number of examples it holds, at "
                       "least 1")
    self.size, self.shape, self.stream = size, tuple(shape), stream
    dtype = tf.as_dtype(dtype or keras.config.floatx())
    self.examples = replicated.variable(
        lambda: tf.zeros([size, *self.shape], dtype), name="examples")
    self.entered = replicated.variable(lambda: tf.fill([size], tf.constant(-1, tf.int64)),
                                       name="entered")
    self.count = replicated.variable(0, tf.int64, name="count")

  def restored_together(self) -> list[tf.Module]:
    """See `replicator.step.variables.together_in`."""
    return [self]

  def past(self) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the pool before this step, `[size, *shape]`, and bool [size]: which are filled."""
    before = self._before("past")
    return before.examples, tf.range(self.size, dtype=tf.int64) < before.count

  def append(self, examples: tf.Tensor) -> None:
    """Adds this replica's examples `[n, *shape]`, which replace the oldest ones."""
    before = self._before("append")
    joined, numbers = self._numbered("append", before, examples)
    self._put(before, joined, numbers, numbers % self.size)

  def exchange(self, examples: tf.Tensor, probability: float = 0.5) -> tf.Tensor:
    """Exchanges some of this replica's examples `[n, *shape]` for past ones.

    The first `size` examples fill the pool. With this probability, each later example replaces a
    random past example, which is returned in its place; otherwise, the example is returned and does
    not enter the pool. If two examples of a batch draw the same position, the last one stays there.

    Returns:
      `[n, *shape]` in the dtype of `examples`; n must be known when the step is traced.
    """
    before = self._before("exchange")
    joined, numbers = self._numbered("exchange", before, examples)
    n = examples.shape[0]
    drawn = random.uniform(self.stream, [n], 0, self.size, "int64")
    is_exchanged = random.bernoulli(self.stream, [n], probability)
    drawn = collectives.all_concat(tf.where(is_exchanged, drawn, -1))
    places = tf.where(numbers < self.size, numbers, drawn)
    self._put(before, joined, numbers, places)
    own = tf.slice(places, [context.replica_id() * n], [n])
    past = tf.cast(tf.gather(before.examples, tf.maximum(own, 0)), examples.dtype)
    is_past = (own >= 0) & (own < before.count)
    return tf.stop_gradient(tf.where(_as_rows(is_past, past), past, examples))

  def _before(self, call: str) -> "_Before":
    """Returns the pool as it was before the step; outside of a step, as it is now."""
    now = context.current()
    if not now.is_step:
      return _Before(self)
    if self not in now.kept:
      if context.in_inner_graph():
        raise UsageError(f"ExamplePool.{call}: called inside a tf.while_loop, tf.cond or "
                         "tf.function of the step; call it directly in the step, and loop over "
                         "a Python range")
      now.kept[self] = _Before(self)
    return now.kept[self]

  def _numbered(self, call: str, before: "_Before", examples: tf.Tensor
                ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns all replicas' examples `[m, *shape]`, and their indices in the order of entry."""
    self._check(call, examples)
    context.check_not_recomputed(f"ExamplePool.{call} would add its examples")
    joined = collectives.all_concat(tf.stop_gradient(tf.cast(examples, self.examples.dtype)))
    part = context.current().microbatch
    parts, index = (part.count, part.index) if part else (1, 0)
    total = joined.shape[0] or tf.shape(joined)[0]
    first = context.once(lambda: before.first_of(total * parts))
    # Micro-batch j has the examples j, j + parts, j + 2 parts, ... of the batch.
    rows = first + tf.range(total) * parts + index
    return joined, before.count + tf.cast(rows, tf.int64)

  def _put(self, before: "_Before", joined: tf.Tensor, numbers: tf.Tensor, places: tf.Tensor
           ) -> None:
    """Writes examples to their places, except -1 and places that hold a later example."""
    count = before.count + tf.cast(before.passed, tf.int64)
    replicated.update([self.examples, self.entered, self.count], _write, joined, numbers, places,
                      count)

  def _check(self, call: str, examples: tf.Tensor) -> None:
    dtype, shape = self.examples.dtype, list(self.shape)
    if examples.shape.rank is None or examples.shape[1:] != shape:
      raise UsageError(f"ExamplePool.{call}: examples of shape {examples.shape} do not fit a pool "
                       f"of {shape}; pass [n, {', '.join(map(str, shape))}]")
    if examples.dtype != dtype and not (examples.dtype.is_floating and dtype.is_floating):
      raise UsageError(f"ExamplePool.{call}: {examples.dtype.name} examples do not fit a "
                       f"{dtype.name} pool; cast them, or write ExamplePool(..., dtype="
                       f"'{examples.dtype.name}')")
    if examples.shape[0] is None and context.current().microbatch:
      raise UsageError(f"ExamplePool.{call}: the number of examples of a micro-batch must be "
                       "known before the step runs")


class _Before:
  """A pool as it was before the step, and how many examples the step has passed in."""

  def __init__(self, pool: ExamplePool):
    self.examples, self.count = tf.identity(pool.examples), tf.identity(pool.count)
    self.passed: int | tf.Tensor = 0  # How many examples the step has passed in so far.

  def first_of(self, number: int | tf.Tensor) -> int | tf.Tensor:
    """Adds `number` to `passed`; returns its previous value."""
    first, self.passed = self.passed, self.passed + number
    return first


def _write(copies: list[tf.Variable], joined: tf.Tensor, numbers: tf.Tensor, places: tf.Tensor,
           count: tf.Tensor) -> None:
  """Writes into one replica's copies; see `ExamplePool._put`."""
  examples, entered, total = copies
  # Row 0 is a dummy for examples that are not written.
  rows = tf.pad(joined, [[1, 0]] + [[0, 0]] * (joined.shape.rank - 1))
  order = tf.range(1, tf.size(places, tf.int64) + 1) * tf.cast(places >= 0, tf.int64)
  last = tf.tensor_scatter_nd_max(
      tf.zeros_like(entered), tf.maximum(places, 0)[:, tf.newaxis], order)
  number = tf.gather(tf.pad(numbers, [[1, 0]], constant_values=-1), last)
  # A later example may be in an earlier micro-batch.
  is_new = number > entered
  examples.assign(tf.where(_as_rows(is_new, examples), tf.gather(rows, last), examples))
  entered.assign(tf.where(is_new, number, entered))
  total.assign(count)


def _as_rows(flags: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
  """Reshapes flags [n] so that they broadcast to `[n, ...]`."""
  return tf.reshape(flags, [-1] + [1] * (like.shape.rank - 1))
