"""The shapes of batches for which a step was compiled."""

from collections.abc import Iterable

MANY = 10
"""A step that is compiled more often may take longer to compile than to train."""


def warnings(compiled: Iterable[tuple]) -> list[str]:
  """A line if a step was compiled for many shapes: `(path, shape, dtype)` of each tensor."""
  found = list(dict.fromkeys(compiled))[:MANY]
  if len(found) < MANY:
    return []
  varied = next(shape for (_, shape, _), (_, first, _) in zip(found[-1], found[0], strict=True)
                if shape != first)
  return [f"the step was compiled for {MANY} shapes of batches, the newest with a tensor {varied}, "
          "and is compiled for each further one, which takes time and memory; pad batches to a few "
          "lengths, for instance with tf.data's bucket_by_sequence_length and "
          "pad_to_bucket_boundary=True"]
