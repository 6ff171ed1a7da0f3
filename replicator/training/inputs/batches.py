"""A single pass over a data set, for evaluations."""

from collections.abc import Generator

from replicator.errors import UsageError, at_least_one
from replicator.training.inputs.examples import ordered_batches
from replicator.training.inputs.inputs import ExampleSource, Nest, check_size
from replicator.training.inputs.pipeline import elements, ready

import tensorflow as tf


def batches(source: ExampleSource | tf.data.Dataset, size: int
            ) -> Generator[Nest, None, None]:
  """Iterates once over a data set, in order; the last batch may be smaller.

      for batch in replicator.batches(validation, 256):
        auc.update_state(batch["label"], score(batch["image"]))

  Args:
    source: an example source, whose `load` makes the examples `0, 1, ..., size - 1`, without
      `augmented`; or a finite `tf.data.Dataset` of single examples.
    size: the number of examples per batch.

  Returns:
    An iterator of nests of tensors `[n, ...]`, with `size` examples each and the rest in the last.
    Each example is in exactly one of them.

  Raises:
    UsageError: `source` is neither, or repeats forever, or a batched source makes batches of the
      wrong size.
  """
  at_least_one("batches", size=size)
  name = getattr(source, "__name__", type(source).__name__)
  if isinstance(source, type):
    raise UsageError(f"batches: the source is the class {name}; pass an instance: {name}()")
  if isinstance(source, tf.data.Dataset):
    if source.cardinality() == tf.data.INFINITE_CARDINALITY:
      raise UsageError("batches: the data set repeats forever, but is meant to be read once; "
                       "remove .repeat()")
    dataset = source.batch(size)
  elif isinstance(source, ExampleSource):
    check_size(source)
    dataset = ordered_batches(source, size)
  else:
    raise UsageError(f"batches: the source is a {name}; it must be an example source, with size "
                     "and load(index), or a tf.data.Dataset of examples")
  return elements(ready(dataset))
