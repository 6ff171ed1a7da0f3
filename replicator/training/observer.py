"""Watches a training from outside the user's program.

The user's `main` calls `train` itself, so an observer cannot be an argument. It is installed around
the program instead: `with observed_by(observer): main(workdir)`.
"""

import contextlib
import dataclasses
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

import keras

from replicator.checkpoints.checkpoint import Checkpoints
from replicator.errors import UsageError
from replicator.inputs.inputs import InputContext, Inputs, num_examples
from replicator.step.variables import held_by
from replicator.strategies.replicator import Replicator
from replicator.training.chief import Evaluation

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Training:
  """A training that is prepared: the step is built, and nothing has run; see `train`."""

  replicator: Replicator
  step: Callable
  inputs: Inputs | None
  input_context: InputContext
  evaluate: Callable[[Any], Evaluation] | None = None
  before_call: Callable[[Any, int], None] | None = None
  notes: Sequence[str] = ()  # Lines on how it began, for the user.

  def data(self) -> str:
    """A few words on where the batches come from."""
    if self.inputs is None:
      return "made by the step"
    name = getattr(self.inputs, "__name__", type(self.inputs).__name__)
    examples = num_examples(self.inputs)
    return name if examples is None else f"{name}, {examples:,} examples"

  def parameters(self) -> dict[str, int]:
    """The number of trained parameters of each Keras network of the step, by its path."""
    counts = {path: sum(math.prod(v.shape) for v in network.trainable_variables)
              for path, network in held_by(self.step, (keras.layers.Layer,))}
    return {path: count for path, count in counts.items() if count}


class Observer:
  """Watches a training. This one does nothing; others override what they need.

  To see what optimizers do, set `on_update` of the step's context: see `step.context.StepContext`.
  """

  def prepared(self, training: Training) -> None:
    """Receives the training before it reads or writes its workdir."""

  def run_step(self, step: Callable, *batch: Any) -> Any:
    """Runs the step on a replica, where it is traced, and returns what it returned."""
    return step(*batch)

  def batch(self, step: int, batch: Any) -> None:
    """Receives what a `TrainingFunction` is called with after `step` steps."""

  def saved(self, step: int, checkpoints: Checkpoints) -> None:
    """Is called on every worker when a checkpoint was taken; it may still be being written."""

  def stop(self) -> NoReturn:
    """Ends the training and the user's program, past their handlers; `observed_by` returns."""
    raise _Stop


class _Stop(BaseException):
  """No `except Exception` catches it."""


_observer = Observer()


@contextlib.contextmanager
def observed_by(observer: Observer) -> Iterator[None]:
  """Inside, `train` reports to `observer`, which may end the block with `stop`."""
  global _observer
  previous, _observer = _observer, observer
  try:
    with contextlib.suppress(_Stop):
      yield
  finally:
    _observer = previous


def run_until_prepared(main: Callable[[str], None], look: Callable[[Training], _T],
                       name: str = "the experiment") -> _T:
  """Runs a program, already configured, until its training is prepared; returns what `look` does.

  `look` is called inside `train`. Nothing else is trained or evaluated, and nothing is left on the
  disk. Raises a UsageError if the program, which errors call by its `name`, does not call
  `replicator.train`; and what it raises.
  """
  found: list[_T] = []

  class Looking(Observer):
    def prepared(self, training: Training) -> None:
      found.append(look(training))
      self.stop()

  with tempfile.TemporaryDirectory(prefix="replicator-") as workdir, observed_by(Looking()):
    main(workdir)
    raise UsageError(f"{name} did not call replicator.train, so there is no step")
  return found[0]


def current() -> Observer:
  """The observer of the trainings of this process; one that does nothing by default."""
  return _observer
