"""The numbers of a step, the batch, losses and gradients, as a hook records them."""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any

from replicator.errors import UsageError
from replicator.step import context
from replicator.step.collectives import collectives
from replicator.step.hooks import Hook
from replicator.step.nest import Nest
from replicator.step.optimizers.optimizer import Optimizer
from replicator.step.variables import variables_of
from replicator.training.checks import mixing
from replicator.training.checks.inspection import Evidence

import keras
import numpy as np
import tensorflow as tf
import tree

Key = tuple[int, str, str]  # Step (0: before the first), kind, and name; the kinds are those below.

VARIABLE, BATCH, LOSS, GRADIENT = "variable", "batch", "loss", "gradient"

ROUNDING = {"float64": 2e-14, "float32": 1e-5}
"""About a hundred roundings: what a sum of large numbers that cancel is wrong by, relative."""


@dataclasses.dataclass
class Recording:
  """Some steps of a training."""

  quantities: dict[Key, np.ndarray]
  """The mean over replicas of a number for each tensor of the batch, of each loss and of each
  gradient, and each variable after the step, in the order in which a step computes them; float64,
  or whole numbers as they are."""
  evidence: Evidence
  batch_size: int = 0  # The global one.


class StepRecorder(Hook):
  """Records the steps of a `module` that it is a hook of, in `recording`."""

  def __init__(self, module: Any):
    self.variables = variables_of(module)
    self._paths = {id(v): path for path, v in self.variables.items()}
    self.recording = Recording({}, Evidence(module))
    self._inside: tuple | None = None  # Of the step on one replica: its graph, batch and outputs.

  def look_for_suspects(self) -> None:
    """Notes what in a step on one replica is not linear in its batch; it takes time."""
    if self._inside:
      self.recording.evidence.suspects = mixing.suspects(*self._inside)

  def read(self, number: int) -> dict[Key, np.ndarray]:
    """The values of all variables after so many steps."""
    values = {path: v.numpy() for path, v in self.variables.items() if isinstance(v, tf.Variable)}
    return {(number, VARIABLE, path): comparable(value) for path, value in values.items()}

  def drawn(self, stream: str, rows: int) -> None:
    """Notes a draw of `replicator.random`."""
    self.recording.evidence.look_at_draw(stream, rows)

  def updating(self, optimizer: Optimizer, variables: list, local: list[tf.Tensor],
               averaged: list[tf.Tensor]) -> list[tf.Tensor]:
    """Notes the gradients of an update of this replica, and drops what is rounding in them."""
    if context.in_inner_graph():  # A loop or a branch, which several replicas refuse.
      return averaged
    gradients, updates = context.current().kept.setdefault(self, ([], Counter()))
    path = self.recording.evidence.path_of(optimizer)
    updates[path] += 1
    self.recording.evidence.look_at_gradients(local)
    for variable, gradient in zip(variables, averaged, strict=True):
      if gradient.dtype != averaged[0].dtype:
        raise UsageError(f"{variable.path} is {gradient.dtype.name}, and {variables[0].path} is "
                         f"{averaged[0].dtype.name}: only one dtype can be compared; leave the "
                         "dtypes of layers to train.precision")
    used = _without_rounding(averaged, ROUNDING.get(keras.config.floatx(), 1e-5))
    for variable, gradient in zip(variables, used, strict=True):
      name = self._paths.get(id(variable.value), variable.path)
      gradients.append((GRADIENT, f"{path}, update {updates[path]}: {name}", gradient))
    return used

  def ended(self, batch: tuple, outputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """The batch, the losses and the gradients, means over replicas: `{"place kind/name": ...}`."""
    graph, size = tf.compat.v1.get_default_graph(), context.run.global_batch_size
    self.recording.batch_size = size
    self.recording.evidence.look_at_graph(graph)
    if context.num_replicas() == 1 and not tf.executing_eagerly():
      self._inside = graph, tree.flatten(batch), outputs, size
    gradients, _ = context.current().kept.get(self, ((), None))
    found = [*_numbers_of(batch), *((LOSS, name, loss) for name, loss in outputs.items()),
             *gradients]
    return collectives.all_mean({f"{place:06d} {kind}/{name}": tf.cast(value, tf.float64)
                                 for place, (kind, name, value) in enumerate(found)})

  def received(self, step: int, values: dict[str, tf.Tensor]) -> None:
    """Keeps what `ended` has returned."""
    for key, value in sorted(values.items()):
      kind, _, name = key.partition(" ")[2].partition("/")
      self.recording.quantities[step + 1, kind, name] = value.numpy()


def _numbers_of(batch: Nest) -> Iterator[tuple[str, str, tf.Tensor]]:
  """A number for each tensor of a batch, which depends on its examples, and not on their order."""
  for path, x in tree.flatten_with_path(batch):
    numbers = tf.strings.to_hash_bucket_fast(x, 2 ** 20) if x.dtype == tf.string else x
    yield (BATCH, "/".join(map(str, path[1:])) or "examples",
           tf.reduce_mean(tf.square(tf.cast(numbers, tf.float64) + 1.0)))


def _without_rounding(gradients: list[tf.Tensor], share: float) -> list[tf.Tensor]:
  """The gradients of an update, with zeros where there is nothing but rounding.

  The true gradient of a bias before a batch norm is zero, and what comes out is the rounding of a
  sum that cancels. An optimizer that normalizes, such as Lion, would make of it an update of any
  sign and full size, another one in each variant. Here, numbers below this share of the largest
  norm are rounding.
  """
  least = share * tf.reduce_max([tf.norm(gradient) for gradient in gradients])
  return [tf.where(tf.abs(gradient) < least, tf.zeros_like(gradient), gradient)
          for gradient in gradients]


def comparable(value: np.ndarray) -> np.ndarray:
  """A value as recordings hold it: float64, or whole numbers as they are."""
  return value if value.dtype.kind in "biu" else np.asarray(value, np.float64)
