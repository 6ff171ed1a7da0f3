"""The losses, gradients and variables of a step, recorded for the doctor's check of replicas."""

import contextlib
import dataclasses
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator

from replicator.configuration.gin_internals import operative_config
from replicator.doctor import inspection
from replicator.errors import UsageError
from replicator.step import context
from replicator.step.collectives import collectives
from replicator.step.hooks import Hook
from replicator.step.nest import Nest
from replicator.step.optimizers.optimizer import Optimizer
from replicator.step.variables import variables_of
from replicator.training.callbacks.callback import Callback, installed
from replicator.training.divergence.guard import Guard
from replicator.training.prepared import Enough
from replicator.training.run import Run

import keras
import numpy as np
import tensorflow as tf
import tree

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

  Raises a UsageError if the experiment does not train so many, or fixes another precision.
  """
  keras.backend.clear_session()  # Names and seeds as in a new process.
  tf.random.set_seed(0)  # Of what the program makes before it trains, such as a data set.
  recorder = ReplicaRecorder(steps, precision)
  with tempfile.TemporaryDirectory(prefix="replicator-") as workdir, (
      installed([recorder], is_check=True)), contextlib.suppress(Enough):
    main(workdir)
    raise UsageError("the experiment did not call replicator.train, so there is no step"
                     if not hasattr(recorder, "recording") else
                     f"the experiment ended before step {steps}")
  return recorder.recording


class ReplicaRecorder(Callback, Hook):
  """Records the first steps of a training, and ends the program."""

  every = 1
  on_all_workers = True

  def __init__(self, steps: int, precision: str):
    self._steps, self._precision = steps, precision
    self.hooks = [self]

  def begin(self, run: Run) -> None:
    """Reads the first values."""
    if keras.config.dtype_policy().name != self._precision:
      raise UsageError(f"the experiment passes precision = '{keras.config.dtype_policy().name}' to "
                       "train itself; leave train.precision to gin")
    run.is_check, run.guard = True, Guard("off")
    run.schedule = dataclasses.replace(
        run.schedule, steps=max(run.schedule.steps, self._steps), steps_per_call=1, eval_every=0,
        checkpoint_every=0)
    self._variables = variables_of(run.module)
    self._paths = {id(v): path for path, v in self._variables.items()}
    self._evidence = inspection.Evidence(run.module)
    self.recording = ReplicaRecording({}, run.is_chief, run.input_context.global_batch_size,
                                      self._evidence)
    self.recording.quantities.update(self._read(0))

  def after_steps(self, run: Run) -> None:
    """Reads the values after a step."""
    self.recording.quantities.update(self._read(run.step))
    if run.step == self._steps:
      self._evidence.constant_draws += [
          warning for warning in run.warnings if "its numbers are constants" in warning]
      self._evidence.microbatched = any(
          selector == "replicator.microbatch" and "n" in values
          for (_, selector), values in operative_config().items())
      raise Enough

  def _read(self, number: int) -> dict[Key, np.ndarray]:
    values = {path: v.numpy() for path, v in self._variables.items() if isinstance(v, tf.Variable)}
    return {(number, VARIABLE, path): value if value.dtype.kind in "biu" else
            np.asarray(value, np.float64) for path, value in values.items()}

  # ---- Inside the step --------------------------------------------------------------------------

  def drawn(self, stream: str, rows: int) -> None:
    """Notes a draw of `replicator.random`."""
    self._evidence.look_at_draw(stream, rows)

  def updating(self, optimizer: Optimizer, variables: list, local: list[tf.Tensor],
               averaged: list[tf.Tensor]) -> list[tf.Tensor]:
    """Notes the gradients of an update of this replica, and drops what is rounding in them."""
    if context.in_inner_graph():  # A loop or a branch, which several replicas refuse.
      return averaged
    gradients, updates = context.current().kept.setdefault(self, ([], Counter()))
    path = self._evidence.path_of(optimizer)
    updates[path] += 1
    self._evidence.look_at_gradients(local)
    for variable, gradient in zip(variables, averaged, strict=True):
      if gradient.dtype != averaged[0].dtype:
        raise UsageError(f"{variable.path} is {gradient.dtype.name}, and {variables[0].path} is "
                         f"{averaged[0].dtype.name}: only one dtype can be compared; leave the "
                         "dtypes of layers to train.precision")
    used = _without_rounding(averaged, ROUNDING[self._precision])
    for variable, gradient in zip(variables, used, strict=True):
      name = self._paths.get(id(variable.value), variable.path)
      gradients.append((GRADIENT, f"{path}, update {updates[path]}: {name}", gradient))
    return used

  def ended(self, batch: tuple, outputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """The batch, the losses and the gradients, means over replicas: `{"place kind/name": ...}`."""
    self._evidence.look_at_graph(tf.compat.v1.get_default_graph())
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
