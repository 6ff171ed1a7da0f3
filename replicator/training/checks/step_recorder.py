"""Records the numbers of a step with a hook: its batch, losses, gradients and variables."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from replicator.errors import UsageError
from replicator.step import context
from replicator.step.collectives import collectives
from replicator.step.hooks import Hook
from replicator.step.nest import Nest
from replicator.step.optimizers.optimizer import Optimizer
from replicator.step.replicated import copies_of
from replicator.step.shards import shards_of, whole
from replicator.step.variables import held_by, variables_of

import keras
import numpy as np
import tensorflow as tf
import tree

Key = tuple[int, str, str]  # Step (0: before the first), kind (see below), and name.

VARIABLE, BATCH, LOSS, GRADIENT = "variable", "batch", "loss", "gradient"

ROUNDING = {"float64": 2e-14, "float32": 1e-5}
"""About a hundred roundings: the relative error of a sum of large numbers that cancel."""


class StepRecorder(Hook):
  """A hook that records the steps of a `module` in `quantities`.

  These are means over replicas: a number for each tensor of the batch, each loss and each gradient;
  and each variable after the step. They are in the order in which a step computes them, with dtypes
  as in `comparable`.
  """

  def __init__(self, module: Any):
    self.variables = variables_of(module)
    self.quantities: dict[Key, np.ndarray] = {}
    self._paths = {id(v): path for path, v in self.variables.items()}
    self._optimizers = {id(each): path for path, each in held_by(module, (Optimizer,))}

  def read(self, number: int, of_first: bool = False) -> dict[Key, np.ndarray]:
    """Reads all variables after `number` steps; with `of_first`, the first local replica's."""
    values = {path: whole(v) if shards_of(v) else (copies_of(v)[0] if of_first else v).numpy()
              for path, v in self.variables.items() if isinstance(v, tf.Variable)}
    return {(number, VARIABLE, path): comparable(np.asarray(value))
            for path, value in values.items()}

  def updating(self, optimizer: Optimizer, variables: list, local: list[tf.Tensor],
               averaged: list[tf.Tensor]) -> list[tf.Tensor]:
    """Records the gradients of an update on this replica, and removes rounding from them."""
    if context.in_inner_graph():  # A loop or a branch, which fails on several replicas.
      return averaged
    gradients, updates = context.current().kept.setdefault(self, ([], Counter()))
    path = self._optimizers.get(id(optimizer), str(optimizer.name))
    updates[path] += 1
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
    """Averages the batch, losses and gradients over replicas: `{"place kind/name": ...}`."""
    gradients, _ = context.current().kept.get(self, ((), None))
    found = [*_numbers_of(batch), *((LOSS, name, loss) for name, loss in outputs.items()),
             *gradients]
    return collectives.all_mean({f"{place:06d} {kind}/{name}": tf.cast(value, tf.float64)
                                 for place, (kind, name, value) in enumerate(found)})

  def received(self, step: int, values: dict[str, tf.Tensor]) -> None:
    """Keeps what `ended` returned."""
    for key, value in sorted(values.items()):
      kind, _, name = key.partition(" ")[2].partition("/")
      self.quantities[step + 1, kind, name] = value.numpy()


def _numbers_of(batch: Nest) -> Iterator[tuple[str, str, tf.Tensor]]:
  """Yields a number for each tensor of a batch that depends on its examples but not their order."""
  for path, x in tree.flatten_with_path(batch):
    if x.dtype == tf.string:
      x = tf.strings.to_hash_bucket_fast(x, 2 ** 20)
    elif x.dtype.is_complex:
      x = tf.stack([tf.math.real(x), 2.0 * tf.math.imag(x)])
    yield (BATCH, "/".join(map(str, path[1:])) or "examples",
           tf.reduce_mean(tf.square(tf.cast(x, tf.float64) + 1.0)))


def _without_rounding(gradients: list[tf.Tensor], share: float) -> list[tf.Tensor]:
  """Replaces numbers in the gradients of an update that are only rounding with zeros.

  The true gradient of a bias before a batch norm is zero, and the computed one is the rounding of a
  sum that cancels. A normalizing optimizer such as Lion would turn it into a full-size update of
  random sign, different in each variant. Here, numbers below this share of the largest norm count
  as rounding.
  """
  least = share * tf.reduce_max([tf.norm(gradient) for gradient in gradients])
  return [tf.where(tf.abs(gradient) < least, tf.zeros_like(gradient), gradient)
          for gradient in gradients]


def comparable(value: np.ndarray) -> np.ndarray:
  """Converts a value for recordings to float64 or complex128; integers and strings stay as is."""
  if value.dtype.kind == "c":
    return value.astype(np.complex128)
  return value if value.dtype.kind in "biuOS" else np.asarray(value, np.float64)
