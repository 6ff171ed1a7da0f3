"""Reruns the step that ended a run, up to the first number that is not finite.

    replicator replay RUN [--step=N] [--gin_param="a.b = 1"] [--yes] [--debug]

A run keeps the batch of a failed step in `failures/`. Its program trains again from the last
checkpoint before that step, on one device and in a temporary folder. Then the step runs eagerly on
the batch, up to the first operation whose result is not finite.

Exit status: 0 if the step fails again; 1 if it does not; 2 for a bad command line or a missing
file.
"""

import argparse
import contextlib
import dataclasses
import pathlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from replicator.app import load
from replicator.app.loading_flags import add_program_flags
from replicator.configuration.checks import missing_values_reported
from replicator.console.command import Parser, status_of
from replicator.console.formatting import labeled
from replicator.console.status import Status
from replicator.errors import RunFailed, UsageError
from replicator.step import context
from replicator.strategies.replicator import replaced
from replicator.tools import rerun
from replicator.training.callbacks.callback import Callback, installed
from replicator.training.divergence import failures
from replicator.training.divergence.failures import Failure
from replicator.training.divergence.replayed_step import replay
from replicator.training.prepared import Enough
from replicator.training.run import Run
from replicator.training.workdir.places import folder_of


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line `argv` (default: this process's); returns the exit status."""
  return status_of(lambda words: _replay(_parse(words)), argv)


def _parse(words: Sequence[str]) -> argparse.Namespace:
  parser = Parser(description="Reruns the step that ended a run.")
  parser.add_argument("run", metavar="RUN", help="the workdir of the run, a folder or a URL")
  parser.add_argument("--step", type=int, metavar="N",
                      help="the step that failed; by default the last one")
  add_program_flags(parser)
  return parser.parse_args(words)


def _replay(flags: argparse.Namespace) -> int:
  load.check_program(flags.run, flags.yes)
  folder = folder_of(flags.run, "all")
  failure = failures.found(folder, flags.step)
  print(labeled("failed", failure.message))
  for name, values in failure.recent_of_offending().items():
    print(labeled("recent", f"{name} {values}"))
  with Status() as status, tempfile.TemporaryDirectory(prefix="replicator-") as workdir:
    status.doing("loading the run")
    facts = rerun.read_facts(folder, load.REMEDY)
    program = load.configured(folder, facts, flags.gin_param, flags.yes)
    begin = failures.prepare(folder, failure, pathlib.Path(workdir))
    status.note(labeled("trained", f"from step {begin} to step {failure.step - 1}, on one device"))
    status.doing(f"training to step {failure.step - 1}")
    run = _trained(program, workdir, failure)
    status.doing("running the step")
    return 0 if replay(run, failure, status.note) else 1


def _trained(program: Callable[[str], None], workdir: str, failure: Failure) -> Run:
  """Runs a configured program in a workdir until the failed step comes next."""
  until = _Until(failure)
  context.run.is_loaded = True
  with (missing_values_reported(), replaced(**load.HERE), installed([until], is_check=True),
        contextlib.suppress(Enough)):
    try:
      program(workdir)
    except RunFailed as error:
      raise RunFailed(f"not replayed, since a different step fails on one device: "
                      f"{str(error).partition(';')[0]}") from error
    raise UsageError(f"the program did not train to step {failure.step - 1}")
  return until.run


class _Until(Callback):
  """A callback that ends a run before a step."""

  on_all_workers = True
  run: Run

  def __init__(self, failure: Failure):
    self._failure = failure

  def begin(self, run: Run) -> None:
    self.run, failure = run, self._failure
    run.is_check, run.guard.action = True, "stop"
    run.schedule = dataclasses.replace(
        run.schedule, steps=max(run.schedule.steps, failure.step), steps_per_call=1, eval_every=0,
        checkpoint_every=0)
    before = run.before_call

    def before_call(module: Any, number: int) -> None:
      if before:
        before(module, number)
      if number == failure.step - 1:
        raise Enough

    run.before_call = before_call


if __name__ == "__main__":
  sys.exit(main())
