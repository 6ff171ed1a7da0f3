"""Runs a program until its run is set up, for commands that inspect its step."""

import tempfile
from collections.abc import Callable
from typing import TypeVar

from replicator.errors import UsageError
from replicator.training.callbacks.callback import Callback, installed
from replicator.training.run import Run

_T = TypeVar("_T")


class Enough(SystemExit):
  """An exit from a program whose run was inspected; like `sys.exit`, it is not an `Exception`."""


def run_until_prepared(main: Callable[[str], None], look: Callable[[Run], _T],
                       name: str = "the experiment") -> _T:
  """Runs a configured program until training would begin; returns the result of `look`.

  `look` is called inside `train`, with the step built. Nothing is trained or evaluated, and nothing
  is left on disk. Raises a UsageError, with the `name` of the program, if it does not call
  `replicator.train`. Errors of the program propagate.
  """
  found: list[_T] = []

  class Looking(Callback):
    on_all_workers = True

    def begin(self, run: Run) -> None:
      found.append(look(run))
      raise Enough

  with tempfile.TemporaryDirectory(prefix="replicator-") as workdir, installed([Looking()]):
    try:
      main(workdir)
    except Enough:
      return found[0]
  raise UsageError(f"{name} did not call replicator.train, so there is no step")
