"""The input contract: the global batch of step s is the same however it is divided.

*An example source* has random access: `size` examples and `load(index)`. The library shuffles,
repeats, batches and divides them. Position p of the endless stream of examples is a pure function
of (seed, p), and step s takes positions `[s * B, (s + 1) * B)` for a global batch of B. So a
resumed run continues at its step, on any number of replicas, and nothing else is saved. A source
may also have `augmented(index, seed)`, which makes variants of an example: the seed is (seed of the
run, p), so that the variant, too, is a pure function of them. A source that is `batched` is called
once for each batch. One that has `digest()` says what its examples are, for instance a hash of the
names and sizes of files and of their labels: a run that was saved with others is not resumed.

*An input function* is called with an `InputContext` and returns a `tf.data.Dataset` of batches,
each the pipeline's part of a global batch, from step 0 on. A resumed run skips to its step, which
takes time but is exact if the data set is deterministic.
"""

import contextlib
import dataclasses
import operator
from collections.abc import Callable, Generator
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf
import tree

from replicator.errors import UsageError
from replicator.inputs.shuffle import shuffled
from replicator.tracing import python_state

Nest = Any

# Batches that wait for their step. AUTOTUNE would double them whenever they run out, without end.
_READY = 2
_AT_ONCE = 2  # Batches in the making: one begins while the other waits for its last examples.


@runtime_checkable
class ExampleSource(Protocol):
  """Examples with random access."""

  size: int  # The number of distinct examples.

  def load(self, index: tf.Tensor) -> Nest:
    """One example, a nest of tensors of static shape, for a scalar int64 in `[0, size)`.

    Traced into a `tf.data` pipeline: TensorFlow operations only, no state.

    If the source has an attribute `batched` that is True, the pipeline calls it with int64 `[n]`,
    and each tensor is `[n, ...]`. The seeds of `augmented` are int64 `[n, 2]` then.
    """


@dataclasses.dataclass(frozen=True)
class InputContext:
  """The facts about a run that an input function needs (as in the Replicator RFC).

  Attributes:
    global_batch_size: examples of one step over all replicas.
    input_pipeline_id: the number of this pipeline; each worker has one.
    num_input_pipelines: how many pipelines there are.
    num_replicas_in_sync: how many replicas make a step together.
    seed: the seed of the run, for shuffling.
  """

  global_batch_size: int
  input_pipeline_id: int = 0
  num_input_pipelines: int = 1
  num_replicas_in_sync: int = 1
  seed: int = 0

  @property
  def batch_size(self) -> int:
    """Examples of one step that this pipeline provides."""
    return self.global_batch_size // self.num_input_pipelines

  def get_per_replica_batch_size(self, global_batch_size: int) -> int:
    """Examples of one step that one replica sees; raises a UsageError if it does not divide."""
    replicas = self.num_replicas_in_sync
    if global_batch_size < 1 or global_batch_size % replicas:
      lower = max(1, global_batch_size // replicas) * replicas
      raise UsageError(f"train.global_batch_size = {global_batch_size}: does not divide by the "
                       f"{replicas} replicas; write {lower} or {lower + replicas}")
    return global_batch_size // replicas


Inputs = ExampleSource | Callable[[InputContext], tf.data.Dataset]


def check(inputs: Any) -> None:
  """Raises a UsageError unless `inputs` are None, an example source, or an input function."""
  name = getattr(inputs, "__name__", type(inputs).__name__)
  if isinstance(inputs, type):
    raise UsageError(f"train: the inputs are the class {name}; give an instance: {name}()")
  if isinstance(inputs, tf.data.Dataset):
    raise UsageError("train: the inputs are a tf.data.Dataset, which does not know its part of the "
                     "global batch; give a function, lambda context: "
                     "dataset.repeat().shard(context.num_input_pipelines, "
                     "context.input_pipeline_id).batch(context.batch_size, drop_remainder=True)")
  if isinstance(inputs, ExampleSource):
    size = 0
    with contextlib.suppress(TypeError):
      size = operator.index(inputs.size)
    if size < 1:
      raise UsageError(f"train: {name}.size = {inputs.size!r}: must be the number of examples, a "
                       "whole number of at least 1")
  elif inputs is not None and not callable(inputs):
    raise UsageError(f"train: the inputs are a {name}; they must be an example source, with size "
                     "and load(index), or a function of an InputContext that returns a "
                     "tf.data.Dataset")


def batches(inputs: Inputs, context: InputContext, first_step: int = 0) -> tf.data.Dataset:
  """The pipeline's part `[context.batch_size, ...]` of the batches from `first_step` on.

  Raises:
    UsageError: the batch does not divide by the replicas, or the data set of an input
      function, or a batched source, makes batches of another size.
  """
  context.get_per_replica_batch_size(context.global_batch_size)
  if isinstance(inputs, ExampleSource):
    dataset = _examples(inputs, context, first_step)
  else:
    dataset = inputs(context)
    if not isinstance(dataset, tf.data.Dataset):
      raise UsageError("the input function must return a tf.data.Dataset of batches, not "
                       f"{type(dataset).__name__}")
    _check_batch_size(
        dataset, context.batch_size, "the input function yields", "the pipeline's part of the "
        f"global batch, context.batch_size = {context.batch_size} (batch with "
        "drop_remainder=True, so that shapes are static)")
    dataset = dataset.skip(first_step)
  options = tf.data.Options()
  options.deterministic = True
  # The thread that tunes a pipeline often misses that its iterator is closed, and then keeps the
  # process waiting, for up to a minute. Without it, AUTOTUNE means the number of cores.
  options.autotune.enabled = False
  return dataset.with_options(options).prefetch(_READY)


def stream(inputs: Inputs | None, context: InputContext, first_step: int = 0,
           steps_per_call: int = 1) -> Generator[Nest, None, None]:
  """Yields the batches of `batches`, or without inputs None; close it where they are taken.

  With `steps_per_call` above 1 they are of several steps, `[steps_per_call, n, ...]`. Raises a
  UsageError as `batches` does, or if the data set ended.
  """
  if inputs is None:
    while True:
      yield None
  dataset = batches(inputs, context, first_step)
  if steps_per_call > 1:
    dataset = dataset.batch(steps_per_call, drop_remainder=True).prefetch(1)
  yield from elements(dataset)
  raise UsageError("the data set of the input function ended before train.steps; make it repeat()")


def elements(dataset: tf.data.Dataset) -> Generator[Nest, None, None]:
  """Yields the elements of a data set; close it where they are taken, unless it ends.

  Whoever drops the iterator of a data set waits for the examples in the making. Python's collector
  may run in a thread that makes one, which would then wait for itself: so no iterator is left to
  the collector, not even in the traceback of an error.
  """
  try:
    yield from dataset
  except BaseException as error:
    error.__context__ = None  # TensorFlow's own error, whose frames hold the iterator, too.
    raise error.with_traceback(None) from error.__cause__


def _examples(source: ExampleSource, context: InputContext, first_step: int) -> tf.data.Dataset:
  own, whole = context.batch_size, context.global_batch_size

  def at(position: tf.Tensor) -> Nest:  # [] or [own]
    epoch, within = position // source.size, position % source.size
    seed = tf.fill(position.shape, tf.constant(context.seed, tf.int64))
    key = tf.cast(tf.stack([seed, epoch], -1), tf.uint32)
    return variant(source, shuffled(within, key, source.size), tf.stack([seed, position], -1))

  @tf.autograph.experimental.do_not_convert
  def example(i: tf.Tensor) -> Nest:
    return at(i // own * whole + context.input_pipeline_id * own + i % own)

  @tf.autograph.experimental.do_not_convert
  def batch(step: tf.Tensor) -> Nest:
    return at(step * whole + context.input_pipeline_id * own + tf.range(own, dtype=tf.int64))

  if is_batched(source):
    batches = _without_draws(source, lambda: tf.data.Dataset.range(
        first_step, tf.int64.max).map(batch, _AT_ONCE))
    _check_batch_size(
        batches, own, f"{type(source).__name__}.batched = True, but it makes",
        f"the number of indices that it is called with, {own} here; remove the attribute if its "
        "methods take one index")
    return batches
  examples = _without_draws(source, lambda: tf.data.Dataset.range(
      first_step * own, tf.int64.max).map(example, tf.data.AUTOTUNE))
  return examples.batch(own, drop_remainder=True)


def _without_draws(source: ExampleSource, make: Callable[[], tf.data.Dataset]) -> tf.data.Dataset:
  """Makes a data set; raises a UsageError if that draws from a generator of Python or NumPy."""
  states = lambda: python_state.generators_of(getattr(source, "__dict__", {}))
  for _ in range(2):  # Another thread may draw; and layers that are made once draw their seeds.
    before, dataset, after = states(), make(), states()
    if not (moved := python_state.changed(before, after)):
      return dataset
  raise UsageError(f"{type(source).__name__}: load or augmented draws from {moved[0]}, once for "
                   "all examples, since TensorFlow compiles it; write augmented(index, seed), and "
                   "draw with tf.random.stateless_uniform(shape, seed) or the like")


def is_batched(source: ExampleSource) -> bool:
  """Whether a source makes the examples at many indices in one call."""
  return getattr(source, "batched", False)


def num_examples(inputs: Any) -> int | None:
  """The number of distinct examples of some inputs; None if only an input function knows."""
  return int(inputs.size) if isinstance(inputs, ExampleSource) else None


def digest_of(inputs: Any) -> str | None:
  """The digest of the examples of some inputs; None if they have none."""
  return inputs.digest() if hasattr(inputs, "digest") else None


def variant(source: ExampleSource, index: tf.Tensor, seed: tf.Tensor) -> Nest:
  """The example at `index` as it is trained on: `augmented` for a seed int64 [2], or `load`ed.

  Of a source that is batched also the examples at indices [n], for seeds [n, 2].
  """
  if hasattr(source, "augmented"):
    return source.augmented(index, seed)
  return source.load(index)


def _check_batch_size(dataset: tf.data.Dataset, size: int, makes: str, what: str) -> None:
  for spec in tree.flatten(dataset.element_spec):
    if not spec.shape.rank or spec.shape[0] != size:
      raise UsageError(f"{makes} a tensor of shape {spec.shape}; its first axis must be {what}")
