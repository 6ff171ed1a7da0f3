"""The protocol of callbacks, with which users extend the training loop.

    class Message(replicator.Callback):
      def end(self, run, error):
        notify(f"{run.workdir}: {error or 'done'} at step {run.step}")

    replicator.train(MyStep, Data(), workdir="runs/a", steps=1000, callbacks=[Message()])
"""

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from replicator.errors import UsageError
from replicator.step.hooks import Hook

if TYPE_CHECKING:
  from replicator.training.evaluation import Evaluation
  from replicator.training.run import Run


class Callback:
  """A callback of the training loop; override the methods you need.

  The loop calls callbacks in the order of their list, after its own work at a step: when every step
  up to `run.step` is finished, and before that step is saved. They are called on the chief, or on
  every worker if `on_all_workers`. An error in a callback ends the run.

  A callback that is also a `tf.Module` is saved and restored with the step, bit for bit. State in
  plain Python attributes is lost at a restart; `replicator doctor --check_resume` reports it.

  Attributes:
    every: the number of steps between calls of `after_steps`; None for each log point, 0 for never.
    at: additional steps at which `after_steps` is called. Both must be the same on all workers.
    on_all_workers: whether it is called on every worker of a cluster, not only on the chief.
    hooks: observers of the step while it is traced; see `replicator.step.hooks`.
    in_checks: whether the doctor's checks call it too; False if it only reports on the run.
  """

  every: int | None = None
  at: Collection[int] = ()
  on_all_workers = False
  hooks: Sequence[Hook] = ()
  in_checks = True

  def begin(self, run: "Run") -> None:
    """Called before the first step of this process; `run.step` is where a resumed run continues."""

  def after_steps(self, run: "Run") -> None:
    """Called every `every` steps and after the last one; `run.scalars` has the newest scalars."""

  def evaluated(self, run: "Run", found: "Evaluation") -> None:
    """Called with the result of an evaluation at `run.step`."""

  def saved(self, run: "Run") -> None:
    """Called when the checkpoint of `run.saved_step` is on disk; training may have continued."""

  def end(self, run: "Run", error: BaseException | None) -> None:
    """Called once at the end, with the error that ended the run, or None."""


def check(callbacks: Any) -> list[Callback]:
  """Returns the callbacks as a list; raises a UsageError if one is not a callback."""
  if not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
    raise UsageError(f"train.callbacks = {callbacks!r}: must be a list, such as [@Histograms()] in "
                     "a gin file")
  for callback in callbacks:
    if isinstance(callback, type):
      raise UsageError(f"train.callbacks: {callback.__name__} is a class; add parentheses: "
                       f"@{callback.__name__}() in a gin file, {callback.__name__}() in Python")
    if not isinstance(callback, Callback):
      raise UsageError(f"train.callbacks: {callback!r} is not a callback; derive its class from "
                       "replicator.Callback")
    every = callback.every
    if every is not None and (not isinstance(every, int) or every < 0):
      raise UsageError(f"{type(callback).__name__}.every = {every!r}: must be a number of steps, "
                       "or None for each log point")
  return list(callbacks)


_installed: list[Callback] = []
_checks = 0  # The number of active `installed` contexts with `is_check`.


def with_installed(callbacks: Sequence[Callback]) -> list[Callback]:
  """Returns the installed callbacks, followed by these."""
  return [*_installed, *(each for each in callbacks if each.in_checks or not _checks)]


def is_installed(callback: Callback) -> bool:
  """Returns whether a callback was added by `installed`."""
  return any(each is callback for each in _installed)


@contextlib.contextmanager
def installed(callbacks: Sequence[Callback], is_check: bool = False) -> Iterator[None]:
  """Adds callbacks to each run in the body, for programs whose call to `train` you cannot change.

      with installed([recorder]):
        main(workdir)

  They begin before the run has written anything. With `is_check`, callbacks of the run that are not
  `in_checks` are left out.
  """
  global _checks
  _installed.extend(callbacks)
  _checks += is_check
  try:
    yield
  finally:
    _checks -= is_check
    del _installed[len(_installed) - len(callbacks):]
