"""What a step computes on its way, recorded step by step for `replicator.doctor`."""

import contextlib
import dataclasses
import itertools
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from replicator.console import quiet

quiet.import_tensorflow()

import keras
import numpy as np
import tensorflow as tf

from replicator.configuration.gin_internals import operative_config
from replicator.doctor import inspection
from replicator.errors import UsageError
from replicator.optimizers import optimizer as optimizers
from replicator.optimizers.optimizer import Optimizer
from replicator.step import collectives, context
from replicator.step.variables import variables_of
from replicator.strategies.replicator import Replicator
from replicator.training import inputs as inputs_lib
from replicator.training.scalars import checked_scalars
from replicator.training.train import instead_of_training

Key = tuple[int, str, str]
"""Step (0: before the first), kind, and name; the kinds are those below."""

VARIABLE, LOSS, GRADIENT = "variable", "loss", "gradient"
RAW = "gradient as the tape gave it"
"""Before the step changed it and gave it to an optimizer; of itself no quantity to agree on."""


@dataclasses.dataclass
class Recording:
  """One variant's first steps.

  Attributes:
    quantities: the mean over replicas of each loss and gradient, and each variable after the
      step; float64, or whole numbers as they are; in the order in which a step makes them.
    replicas: how many made the steps.
    chief: whether this process is the one that keeps what a cluster records.
    batch_size: of the global batch.
    evidence: what was seen in the step while it was traced.
  """

  quantities: dict[Key, np.ndarray]
  replicas: int
  chief: bool
  batch_size: int
  evidence: inspection.Evidence

  def save(self, path: str) -> None:
    """Writes the quantities to a file for `load`."""
    np.savez(path, **{"|".join(map(str, key)): value  # type: ignore[arg-type]
                      for key, value in self.quantities.items()})


def load(path: str) -> dict[Key, np.ndarray]:
  """The quantities that `Recording.save` wrote."""
  with np.load(path) as file:
    return {(int(step), kind, name): file[key] for key in file.files
            for step, kind, name in [key.split("|", 2)]}


class _Recorded(BaseException):
  """Ends the experiment when all is recorded, past its own handlers."""


def record(main: Callable[[str], None], steps: int, precision: str) -> Recording:
  """Runs an experiment, already configured, until `steps` steps of its `train` are recorded.

  It is not evaluated, and leaves nothing on the disk.

  Raises:
    UsageError: it does not call `replicator.train`, or fixes another precision; or as it raises.
  """
  keras.backend.clear_session()  # Names and seeds as in a new process.
  recorder = _Recorder(steps, precision)
  with (tempfile.TemporaryDirectory(prefix="replicator-") as workdir,
        instead_of_training(recorder), _observed(recorder.observe),
        contextlib.suppress(_Recorded)):
    main(workdir)
  if recorder.recording is None:
    raise UsageError("the experiment did not call replicator.train, so there is no step to examine")
  return recorder.recording


@contextlib.contextmanager
def _observed(observer: Callable) -> Iterator[None]:
  optimizers.observer = observer
  try:
    yield
  finally:
    optimizers.observer = None


class _Taps(threading.local):
  """What the step that this thread traces has made so far; every replica has its thread."""

  def __init__(self):
    self.clear()

  def clear(self) -> None:
    self.names: list[tuple[str, str]] = []
    self.tensors: list[tf.Tensor] = []
    self.updates: Counter[str] = Counter()

  def add(self, kind: str, name: str, value: tf.Tensor) -> None:
    self.names.append((kind, name))
    self.tensors.append(tf.cast(value, tf.float64))


class _Recorder:
  """Takes the place of the training loop."""

  def __init__(self, steps: int, precision: str):
    self.recording: Recording | None = None
    self._steps = steps
    self._precision = precision
    self._taps = _Taps()
    self._names: list[tuple[str, str]] = []

  def __call__(self, replicator: Replicator, step: Callable,
               inputs: inputs_lib.Inputs | None, input_context: inputs_lib.InputContext,
               before_call: Callable[[Any, int], None] | None) -> None:
    if keras.config.dtype_policy().name != self._precision:
      raise UsageError(f"the experiment passes precision = '{keras.config.dtype_policy().name}' to "
                       "train itself; leave train.precision to gin")
    self._step = step
    self._variables = variables_of(step)
    self._paths = {id(v): path for path, v in self._variables.items()}
    self._evidence = inspection.Evidence(step)
    quantities = self._read(0)
    batches = (itertools.repeat(None) if inputs is None
               else iter(inputs_lib.batches(inputs, input_context)))
    for number, batch in zip(range(1, self._steps + 1), batches, strict=False):
      if before_call:
        before_call(step, number - 1)
      outputs = replicator.run(self._one_step, batch)[0]
      quantities.update({(number, kind, name): value.numpy() for (kind, name), value
                         in zip(self._names, outputs, strict=True)})
      quantities.update(self._read(number))
    self._evidence.microbatched = any(
        selector == "replicator.microbatch" and "n" in values
        for (_, selector), values in operative_config().items())
    self.recording = Recording(quantities, replicator.num_replicas, replicator.worker_id == 0,
                               input_context.global_batch_size, self._evidence)
    raise _Recorded

  def _read(self, number: int) -> dict[Key, np.ndarray]:
    values = {path: v.numpy() for path, v in self._variables.items() if isinstance(v, tf.Variable)}
    return {(number, VARIABLE, path): value if value.dtype.kind in "biu" else
            np.asarray(value, np.float64) for path, value in values.items()}

  def _one_step(self, *batch: Any) -> list[tf.Tensor]:
    """The losses and gradients of one step, averaged over replicas; `_names` says which."""
    taps = self._taps
    taps.clear()
    losses = checked_scalars(self._step(*batch))
    applied = taps.names, taps.tensors
    taps.clear()
    for name, loss in losses.items():
      taps.add(LOSS, name, loss)
    if context.num_replicas() == 1:
      self._evidence.look_at_graph(tf.compat.v1.get_default_graph())
    self._names = taps.names + applied[0]
    return collectives.all_mean(taps.tensors + applied[1])

  def observe(self, optimizer: Optimizer, variables: list, local: list[tf.Tensor],
              averaged: list[tf.Tensor]) -> None:
    """Takes down the gradients of one update."""
    graph = tf.compat.v1.get_default_graph()
    if graph is not context.current().graph:
      return  # In a loop or a branch, whose tensors are not to be had outside.
    path = self._evidence.path_of(optimizer)
    self._taps.updates[path] += 1
    update = f"{path}, update {self._taps.updates[path]}"
    # As the tape gave them, where the step changed them before it gave them to the optimizer.
    for number, gradient in enumerate(self._evidence.gradients_of_tape(local)):
      self._taps.add(RAW, f"{update}: {number}", gradient)
    for variable, gradient in zip(variables, averaged, strict=True):
      name = self._paths.get(id(variable.value), variable.path)
      self._taps.add(GRADIENT, f"{update}: {name}", gradient)
