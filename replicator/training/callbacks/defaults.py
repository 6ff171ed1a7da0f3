"""The callbacks that a run has: those that are installed, its own, and the report."""

from collections.abc import Sequence

from replicator.training.callbacks import callback
from replicator.training.callbacks.callback import Callback
from replicator.training.callbacks.report import Report


def callbacks_of_run(given: Sequence[Callback]) -> list[Callback]:
  """The callbacks of a run to which these are given; UsageError: one of them is none."""
  return callback.with_installed([*callback.check(given), Report()])
