"""Histograms of weights and gradients, and the size of updates relative to weights."""

from typing import Any

from replicator.errors import UsageError
from replicator.step import context
from replicator.step.hooks import Hook
from replicator.step.optimizers.optimizer import Optimizer
from replicator.step.variables import held_by
from replicator.training.callbacks.callback import Callback
from replicator.training.run import Run

import gin
import tensorflow as tf


@gin.configurable(module="replicator")
class Histograms(Callback):
  """A callback that writes histograms of all trained weights, and of their averaged gradients.

  In TensorBoard they are `weights/VARIABLE` and `gradients/VARIABLE`. The scalars
  `update_ratio/OPTIMIZER` are the norm of the last update relative to the norm of the weights;
  about 1e-3 is usual.

  Args:
    every: the number of steps between histograms; None for each log point.
    gradients: whether to write histograms of gradients, and the ratios. The step returns gradients
      at each step, so this needs `train.steps_per_call = 1`.
  """

  in_checks = False

  def __init__(self, every: int | None = None, gradients: bool = True):
    self.every = every
    self._updates = _Updates() if gradients else None
    self.hooks = [self._updates] if self._updates else []

  def begin(self, run: Run) -> None:
    """Prepares the hook.

    Raises a UsageError for `gradients` with several steps per call or asynchronous workers.
    """
    optimizers = dict(held_by(run.module, (Optimizer,)))
    self._weights = {f"{path}/{variable.path}": variable for path, optimizer in optimizers.items()
                     for variable in optimizer.variables_updated}
    if self._updates:
      if run.schedule.steps_per_call > 1 or run.replicator.is_async:
        raise UsageError("Histograms.gradients = True: needs train.steps_per_call = 1 and a "
                         "synchronous strategy; otherwise set Histograms.gradients = False")
      self._updates.every = self.every or run.schedule.log_every
      self._updates.paths = {id(optimizer): path for path, optimizer in optimizers.items()}

  def after_steps(self, run: Run) -> None:
    """Writes the histograms of this step."""
    run.writer.histograms(run.step, {
        f"weights/{name}": variable.numpy() for name, variable in self._weights.items()})
    if self._updates:
      found = self._updates.newest
      run.writer.histograms(run.step, {name: value.numpy() for name, value in found.items()
                                       if name.startswith("gradients/")})
      run.writer.scalars(run.step, {name: float(value) for name, value in found.items()
                                    if name.startswith("update_ratio/")})


class _Updates(Hook):
  """A hook that returns the averaged gradients of a step, and compares weights before and after."""

  def __init__(self) -> None:
    self.every = 1  # The number of steps between comparisons of weights.
    self.paths: dict[int, str] = {}  # The paths of the optimizers, by id.
    self.newest: dict[str, tf.Tensor] = {}

  def updating(self, optimizer: Any, variables: list, local: list[tf.Tensor],
               averaged: list[tf.Tensor]) -> list[tf.Tensor]:
    """Keeps the gradients, and the weights before the step's first update."""
    if not context.in_inner_graph():  # Tensors of a loop cannot leave it.
      path = self.paths[id(optimizer)]
      gradients, before = self._of_replica()
      gradients.update({f"gradients/{path}/{variable.path}": gradient
                        for variable, gradient in zip(variables, averaged, strict=True)})
      if path not in before:
        before[path] = variables, tf.cond(
            self._is_due(), lambda: _flat(variables), lambda: tf.zeros([0], variables[0].dtype))
    return averaged

  def ended(self, batch: tuple, outputs: Any) -> dict[str, tf.Tensor]:
    """Returns the gradients, and the ratios of updates to weights, [] each (0 if not due)."""
    gradients, before = self._of_replica()
    ratios = {f"update_ratio/{path}": tf.cond(
        self._is_due(), lambda v=variables, old=old: tf.norm(_flat(v) - old) / tf.norm(old),
        lambda old=old: tf.zeros([], old.dtype)) for path, (variables, old) in before.items()}
    return {**gradients, **ratios}

  def received(self, step: int, values: dict[str, tf.Tensor]) -> None:
    """Keeps the values of the newest step."""
    self.newest = values

  def _of_replica(self) -> tuple[dict[str, tf.Tensor], dict[str, tuple[list, tf.Tensor]]]:
    """Returns the gradients of the replica being traced, and its variables with their first values.
    """
    return context.current().kept.setdefault(self, ({}, {}))

  def _is_due(self) -> tf.Tensor:
    return (context.step_number() + 1) % self.every == 0


def _flat(variables: list) -> tf.Tensor:
  return tf.concat([tf.reshape(variable.value, [-1]) for variable in variables], 0)
