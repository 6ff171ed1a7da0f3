"""Runs a program until its training is prepared, for commands that look at its step."""

import tempfile
from collections.abc import Callable
from typing import TypeVar

from replicator.errors import UsageError
from replicator.training.callbacks.callback import Callback, installed
from replicator.training.run import Run

_T = TypeVar("_T")


class Enough(SystemExit):
  """Ends a program whose run was looked at, as `sys.exit` does: past its handlers."""


def run_until_prepared(main: Callable[[str], None], look: Callable[[Run], _T],
                       name: str = "the experiment") -> _T:
  """Runs a program, already configured, until its training begins; returns what `look` does.

  `look` is called inside `train`, with the step built. Nothing is trained or evaluated, and nothing
  is left on the disk. Raises a UsageError if the program, which errors call by its `name`, does not
  call `replicator.train`; and what it raises.
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
