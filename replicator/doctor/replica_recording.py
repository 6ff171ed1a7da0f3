"""The losses, gradients and variables of a step, recorded for the doctor's check of replicas."""

import contextlib
import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from replicator.console import quiet

quiet.import_tensorflow()

import keras
import numpy as np
import tensorflow as tf
import tree

from replicator.collectives import collectives
from replicator.configuration.gin_internals import operative_config
from replicator.doctor import inspection
from replicator.errors import UsageError
from replicator.inputs.inputs import stream
from replicator.optimizers.optimizer import Optimizer
from replicator.step import context
from replicator.step.nest import Nest
from replicator.step.variables import variables_of
from replicator.tracing import python_state
from replicator.training.observer import Training, run_until_prepared
from replicator.training.training_function import checked_scalars

Key = tuple[int, str, str]  # Step (0: before the first), kind, and name; the kinds are those below.

VARIABLE, BATCH, LOSS, GRADIENT = "variable", "batch", "loss", "gradient"

ROUNDING = {"float64": 2e-14, "float32": 1e-5}
"""About a hundred roundings: what a sum of large numbers that cancel is wrong by, relative."""


@dataclasses.dataclass
class ReplicaRecording:
  """The first steps of one variant."""

  quantities: dict[Key, np.ndarray]
  """The mean over replicas of a number for each tensor of the batch, of each loss and of each
  gradient, and each variable after the step, in the order in which a step computes them; float64,
  or whole numbers as they are."""
  is_chief: bool
  batch_size: int  # The global one.
  evidence: inspection.Evidence


def record(main: Callable[[str], None], steps: int, precision: str) -> ReplicaRecording:
  """Runs an experiment, already configured, until `steps` steps of its `train` are recorded.

  Raises a UsageError as `run_until_prepared` does, and if the experiment fixes another precision.
  """
  keras.backend.clear_session()  # Names and seeds as in a new process.
  return run_until_prepared(
      main, lambda training: _ReplicaRecorder(training, precision).recording(training, steps))


class _ReplicaRecorder:
  """Runs the steps of a prepared training itself."""

  def __init__(self, training: Training, precision: str):
    if keras.config.dtype_policy().name != precision:
      raise UsageError(f"the experiment passes precision = '{keras.config.dtype_policy().name}' to "
                       "train itself; leave train.precision to gin")
    self._precision = precision
    self._variables = variables_of(training.step)
    self._paths = {id(v): path for path, v in self._variables.items()}
    self._evidence = inspection.Evidence(training.step)

  def recording(self, training: Training, steps: int) -> ReplicaRecording:
    """Runs the steps, and returns what they were."""
    quantities = self._read(0)
    one_step = functools.partial(self._one_step, training.step)
    with contextlib.closing(stream(training.inputs, training.input_context)) as batches:
      for number, batch in zip(range(1, steps + 1), batches, strict=False):
        if training.before_call:
          with context.before_step(number - 1):
            training.before_call(training.step, number - 1)
        outputs = training.replicator.run(one_step, batch)[0]
        quantities.update({(number, kind, name): value.numpy()
                           for (_, kind, name), value in sorted(outputs.items())})
        quantities.update(self._read(number))
    self._evidence.microbatched = any(
        selector == "replicator.microbatch" and "n" in values
        for (_, selector), values in operative_config().items())
    return ReplicaRecording(quantities, training.replicator.worker_id == 0,
                            training.input_context.global_batch_size, self._evidence)

  def _read(self, number: int) -> dict[Key, np.ndarray]:
    values = {path: v.numpy() for path, v in self._variables.items() if isinstance(v, tf.Variable)}
    return {(number, VARIABLE, path): value if value.dtype.kind in "biu" else
            np.asarray(value, np.float64) for path, value in values.items()}

  def _one_step(self, step: Callable, *batch: Any) -> dict[tuple[int, str, str], tf.Tensor]:
    """Batch, losses and gradients of a step, means over replicas: `{(place, kind, name): []}`."""
    gradients: list[tuple[str, str, tf.Tensor]] = []  # (kind, name, value)
    context.current().on_update = functools.partial(self._record_update, gradients, Counter())
    context.current().on_draw = self._evidence.look_at_draw
    with python_state.draws_noted_in(self._evidence.constant_draws, step):
      losses = checked_scalars(step(*batch))
    self._evidence.look_at_graph(tf.compat.v1.get_default_graph())
    found = [*_numbers_of(batch), *((LOSS, name, loss) for name, loss in losses.items()),
             *gradients]
    return collectives.all_mean({(place, kind, name): tf.cast(value, tf.float64)
                                 for place, (kind, name, value) in enumerate(found)})

  def _record_update(self, gradients: list, updates: Counter[str], optimizer: Optimizer,
                     variables: list, local: list[tf.Tensor], averaged: list[tf.Tensor]
                     ) -> list[tf.Tensor]:
    """Adds an update to the `gradients` of its replica, which has made so many `updates`."""
    if context.in_inner_graph():  # A loop or a branch, which several replicas refuse.
      return averaged
    path = self._evidence.path_of(optimizer)
    updates[path] += 1
    update = f"{path}, update {updates[path]}"
    self._evidence.look_at_gradients(local)
    for variable, gradient in zip(variables, averaged, strict=True):
      if gradient.dtype != averaged[0].dtype:
        raise UsageError(f"{variable.path} is {gradient.dtype.name}, and {variables[0].path} is "
                         f"{averaged[0].dtype.name}: only one dtype can be compared; leave the "
                         "dtypes of layers to train.precision")
    used = _without_rounding(averaged, ROUNDING[self._precision])
    for variable, gradient in zip(variables, used, strict=True):
      name = self._paths.get(id(variable.value), variable.path)
      gradients.append((GRADIENT, f"{update}: {name}", gradient))
    return used


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
