"""The callbacks of a run: the installed ones, its own, and the report."""

from collections.abc import Sequence

from replicator.training.callbacks import callback
from replicator.training.callbacks.callback import Callback
from replicator.training.callbacks.report import Report


def callbacks_of_run(given: Sequence[Callback]) -> list[Callback]:
  """Returns all callbacks of a run, given its own; raises a UsageError if one is not a callback."""
  return callback.with_installed([*callback.check(given), Report()])
