"""Slots that start as copies of the weights, such as those of Keras' `ScheduleFreeAdamW`.

`wrap_optimizer` creates slots before the first step, whereas plain Keras creates them during it. If
weights are loaded in between, from a file or another run, the slots must be copied again.
"""

import itertools
from collections.abc import Iterator, Sequence

from replicator.internals.keras_internals import optimizer_variables
from replicator.step.replicated import copies_of, read

import keras
import numpy as np
import tensorflow as tf


class CopiedSlots:
  """The slots of a newly built optimizer that are copies of its variables."""

  def __init__(self, optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable]):
    self._iterations = optimizer.iterations
    self._pairs = [pair for slots in _by_role(optimizer) for pair in _copies(slots, variables)]

  def begin(self) -> None:
    """Copies the current weights to the slots, unless the optimizer has made an update."""
    if self._pairs and read(self._iterations.value) == 0:
      for slot, variable in self._pairs:
        for copy, weight in zip(copies_of(slot.value), copies_of(variable.value), strict=True):
          copy.assign(tf.cast(weight, copy.dtype))


def _by_role(optimizer: keras.optimizers.Optimizer) -> Iterator[list[keras.Variable]]:
  """Yields the slots of each role: `momentums/0`, `momentums/1`, ... as one list."""
  roles = optimizer_variables(optimizer).items()
  for _, slots in itertools.groupby(roles, lambda item: item[0].rpartition("/")[0]):
    yield [slot for _, slot in slots]


def _copies(slots: Sequence[keras.Variable], variables: Sequence[keras.Variable]
            ) -> list[tuple[keras.Variable, keras.Variable]]:
  """Returns each slot with its variable if all are copies; [] if not, or if all are zero."""
  if [slot.shape for slot in slots] != [variable.shape for variable in variables]:
    return []
  pairs = list(zip(slots, variables, strict=True))
  are_copies = all(np.array_equal(read(slot.value), read(v.value)) for slot, v in pairs)
  return pairs if are_copies and any(read(slot.value).any() for slot in slots) else []
