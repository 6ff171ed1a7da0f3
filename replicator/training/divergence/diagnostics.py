"""Cheap diagnostics of a step's networks and optimizers, logged during training.

    grad_norm/OPTIMIZER        norm of the averaged gradients, before clipping
    sigma/NETWORK              largest singular value of its `SpectralNorm` layers' kernels
    learning_rate/OPTIMIZER    at a log point, the rate of the next update

OPTIMIZER and NETWORK are the step's attributes: the last part of their path if it is unique. All
replicas compute the same numbers, so no communication is needed.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from replicator.errors import UsageError
from replicator.internals.keras_internals import layers_in, rate_of
from replicator.step import context
from replicator.step.hooks import Hook
from replicator.step.optimizers.optimizer import Optimizer
from replicator.step.optimizers.schedules import doubt
from replicator.step.variables import held_by

import keras
import tensorflow as tf


class Signals(Hook):
  """A hook that logs the signals of one step object with networks and optimizers."""

  def __init__(self, step: Callable):
    held = list(held_by(step, (Optimizer, keras.layers.Layer)))
    self._names: dict[int, str] = {}
    for kind in (Optimizer, keras.layers.Layer):
      named = _shortest({path: item for path, item in held if isinstance(item, kind)})
      for name, item in named.items():
        parts = [item] if isinstance(item, Optimizer) else layers_in(item)
        self._names.update((id(part), name) for part in parts)

  def measured(self, owner: Any, values: dict[str, tf.Tensor]) -> None:
    """Keeps the scalars of a layer or an optimizer until the step ends."""
    context.current().kept.setdefault(self, []).append((owner, values))

  def scalars(self, outputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns the signals of a step that returned `outputs`.

    An optimizer that makes several updates in the step reports the mean of their norms; a layer
    that is called several times reports its last singular value. Raises a UsageError if the step
    returns a scalar with the name of a signal.
    """
    norms: dict[str, list[tf.Tensor]] = {}
    sigmas: dict[str, dict[int, tf.Tensor]] = {}
    for owner, values in context.current().kept.get(self, ()):
      name = self._names.get(id(owner), owner.name)
      for key, value in values.items():
        value = tf.cast(tf.stop_gradient(value), keras.config.floatx())
        if isinstance(owner, Optimizer):
          norms.setdefault(f"{key}/{name}", []).append(value)
        else:
          sigmas.setdefault(f"{key}/{name}", {})[id(owner)] = value
    signals = {
        **{name: tf.add_n(values) / len(values) for name, values in norms.items()},
        **{name: tf.reduce_max(tf.stack(list(of_layers.values())))
           for name, of_layers in sigmas.items()}}
    for name in signals:
      if name in outputs:
        raise UsageError(f"the step returned '{name}', which is already the name of a signal; "
                         "rename it, or set Guard.signals = False")
    return signals


class LearningRates:
  """The learning rates of the optimizers that a step holds."""

  def __init__(self, step: Callable):
    held = _shortest(dict(held_by(step, (Optimizer,))))
    self._optimizers = {f"learning_rate/{name}": item for name, item in held.items()}

  def now(self) -> dict[str, float]:
    """Returns the learning rates of the next step, by name."""
    return {name: float(optimizer.learning_rate)
            for name, optimizer in self._optimizers.items()}

  def warnings(self, steps: int) -> list[str]:
    """Returns warnings about rates that look wrong for a run of `steps` steps."""
    lines = []
    for name, optimizer in self._optimizers.items():
      if found := doubt(rate_of(optimizer.keras_optimizer), steps):
        lines.append(f"{name} {found} of train.steps = {steps}: schedules count training steps; "
                     "give it a length that fits, or a fraction of the run")
    return lines


def _shortest(by_path: dict[str, Any]) -> dict[str, Any]:
  """Shortens each path to its last part, if no other path has the same last part."""
  last = {path: path.rpartition("/")[2] for path in by_path}
  count = Counter(last.values())
  return {last[path] if count[last[path]] == 1 and not last[path].isdigit() else path: item
          for path, item in by_path.items()}
