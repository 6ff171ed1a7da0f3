"""The input pipeline of a process: its part of the global batches, in the order of the steps."""

import hashlib
from collections.abc import Generator

from replicator.errors import UsageError
from replicator.training.inputs.examples import shuffled_batches
from replicator.training.inputs.global_batches import check_rows, own_rows, sizes_refused
from replicator.training.inputs.inputs import (
  ExampleSource,
  InputContext,
  Inputs,
  Nest,
  made_by,
  whole_batches,
)

import numpy as np
import tensorflow as tf

# The number of prefetched batches. AUTOTUNE would double it whenever they run out, without limit.
_READY = 2


def pipeline(inputs: Inputs, context: InputContext, first_step: int = 0) -> tf.data.Dataset:
  """Makes the pipeline's part `[context.batch_size, ...]` of the batches from `first_step` on.

  Raises:
    UsageError: the batch is not divisible by the number of replicas, or a data set, an input
      function or a batched source makes batches of the wrong size.
  """
  context.get_per_replica_batch_size(context.global_batch_size)
  if isinstance(inputs, ExampleSource):
    dataset = shuffled_batches(inputs, context, first_step)
  elif (whole := whole_batches(inputs)) is not None:
    dataset = own_rows(whole, context, first_step)
  else:
    dataset = made_by(inputs, context)
    check_rows(
        dataset, context.batch_size, "the input function yields", "the pipeline's part of the "
        f"global batch, context.batch_size = {context.batch_size} (batch with "
        "drop_remainder=True, so that shapes are static)")
    dataset = dataset.skip(first_step)
  return ready(dataset)


def ready(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Prefetches the elements of a data set, and keeps their order."""
  options = tf.data.Options()
  options.deterministic = True
  # The tuning thread often misses that its iterator is closed, and then blocks the process for up
  # to a minute. Without it, AUTOTUNE means the number of cores.
  options.autotune.enabled = False
  return dataset.with_options(options).prefetch(_READY)


def stream(inputs: Inputs | None, context: InputContext, first_step: int = 0,
           steps_per_call: int = 1) -> Generator[Nest, None, None]:
  """Yields the batches of `pipeline`, or None without inputs; close it in the consuming thread.

  With `steps_per_call` above 1, it stacks several steps, `[steps_per_call, n, ...]`. Raises a
  UsageError like `pipeline`, if a global batch has the wrong size, or if the data set ends.
  """
  if inputs is None:
    while True:
      yield None
  dataset = pipeline(inputs, context, first_step)
  count = int(dataset.cardinality())
  if steps_per_call > 1:
    dataset = dataset.batch(steps_per_call, drop_remainder=True).prefetch(1)
  step = first_step
  with sizes_refused(context.global_batch_size):
    for batch in elements(dataset):
      yield batch
      step += steps_per_call
    has_first = step > first_step or any(
        True for _ in elements(pipeline(inputs, context).take(1)))
  repeats = count == tf.data.INFINITE_CARDINALITY
  if not has_first:
    raise UsageError("the data set has no full batch: it has fewer examples than one batch, or a "
                     "filter drops them all")
  raise UsageError(f"the data set ended before step {step + steps_per_call}" + (
      ", though it repeats: a later pass has no examples, as with an exhausted generator; create "
      "a new generator for each pass" if repeats else
      ": it has fewer batches than train.steps; add .repeat()"))


def digest_of_batch(batch: Nest) -> str:
  """Returns a digest of all tensors of a batch."""
  arrays = [np.asarray(x) for x in tf.nest.flatten(batch, expand_composites=True)]
  return hashlib.sha256(b"".join(
      repr(x.tolist()).encode() if x.dtype == object else x.tobytes() for x in arrays)).hexdigest()


def elements(dataset: tf.data.Dataset) -> Generator[Nest, None, None]:
  """Yields the elements of a data set; close it in the consuming thread, unless it ends.

  Deleting the iterator of a data set waits for examples that are being made. If Python's garbage
  collector deleted it in a thread that makes one, that thread would wait for itself. So no iterator
  is left to the collector, not even in the traceback of an error.
  """
  try:
    yield from dataset
  except BaseException as error:
    error.__context__ = None  # TensorFlow's own error, whose frames also hold the iterator.
    raise error.with_traceback(None) from error.__cause__
