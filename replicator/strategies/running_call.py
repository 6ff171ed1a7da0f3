"""A call of a compiled step that may still be running."""

from collections.abc import Sequence
from typing import Any

from replicator.step.hooks import Hook

import tensorflow as tf


class RunningCall:
  """The result of a call of a `CompiledStep`, which may still be running."""

  def __init__(self, outputs: Any, step: int, stop: bool, names: dict[str, bool], steps: int,
               hooks: Sequence[Hook]):
    self.outputs = outputs  # What the compiled function returned.
    self._step, self._stop = step, stop
    self._scalars, self._steps, self._hooks = names, steps, hooks

  @property
  def counters(self) -> list[str]:
    """The names of the scalars that are variables or unsigned integers; valid after `fetch`."""
    return [name for name, is_counter in self._scalars.items() if is_counter]

  def fetch(self) -> tuple[dict[str, Any], bool]:
    """Waits for the call; returns its scalars, and whether any worker requested a stop.

    The scalars are `{name: [steps_per_call]}`, averaged over replicas.
    """
    means, more = self.outputs.fetch() if hasattr(self.outputs, "fetch") else self.outputs
    values = means.numpy() if tf.is_tensor(means) else means
    size = self._steps * len(self._scalars)
    for number, tensors in more.items():
      self._hooks[number].received(self._step, tensors)
    columns = values[len(values) - size:].reshape([self._steps, -1]).T
    is_agreed = bool(values[0] > 0) if len(values) > size else self._stop
    return dict(zip(self._scalars, columns, strict=True)), is_agreed
