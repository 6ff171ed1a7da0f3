"""Warns about steps that are compiled for many shapes of batches."""

from collections.abc import Iterable

MANY = 10
"""A step that is compiled more often may spend more time compiling than training."""


def warnings(compiled: Iterable[tuple]) -> list[str]:
  """Returns a warning if a step was compiled for many `(path, shape, dtype)` of its tensors."""
  found = list(dict.fromkeys(compiled))[:MANY]
  if len(found) < MANY:
    return []
  varied = next(shape for (_, shape, _), (_, first, _) in zip(found[-1], found[0], strict=True)
                if shape != first)
  return [f"the step was compiled for {MANY} batch shapes, the latest with a tensor {varied}, and "
          "is compiled again for each new one, which takes time and memory; pad batches to a few "
          "lengths, for instance with tf.data's bucket_by_sequence_length and "
          "pad_to_bucket_boundary=True"]
