"""The command line of a sweep.

Exit status: 0 all trials are done or pruned; 1 some failed; 2 bad command line or sweep file;
42 asked to stop: the trials saved, and the same command goes on.
"""

import argparse
import os
import pathlib
import shlex
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence

from replicator.console.flags import Parser, program
from replicator.errors import PREEMPTED_STATUS, UsageError, first_line, in_one_line, nearest
from replicator.sweeps import results, sweep_file
from replicator.sweeps.runners import local
from replicator.sweeps.sweep import Sweep, alone
from replicator.sweeps.trials import Trial
from replicator.sweeps.views import page
from replicator.sweeps.views.table import Table, summary

RUNNERS = ("local", "slurm", "ray")


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line `argv` (default: this process's); returns the exit status."""
  argv = list(sys.argv[1:] if argv is None else argv)
  try:
    flags = _parse(argv)
    file = sweep_file.read(flags.sweep_file, flags.sweep_param)
    folder = pathlib.Path(flags.workdir or f"runs/{pathlib.Path(flags.sweep_file).stem}")
    if folder.exists() and not folder.is_dir():
      raise UsageError(f"--workdir={folder}: is a file; write the name of a folder")
    return _run(file, folder, flags, shlex.join([*program(), *argv]))
  except UsageError as error:
    return _fail(first_line(error), argv, 2)
  except KeyboardInterrupt:  # Before any trial has begun, or while the page is drawn.
    return _fail("interrupted", argv, 130)
  except Exception as error:
    return _fail(in_one_line(error), argv, 1)


def _fail(message: str, argv: Sequence[str], status: int) -> int:
  if "--debug" in argv:
    traceback.print_exc()
  print(f"error: {message}", file=sys.stderr)
  return status


def _parse(argv: list[str]) -> argparse.Namespace:
  parser = Parser(description="Runs the trials of a sweep; the same command goes on with it.",
                  prog=shlex.join(program()), allow_abbrev=False)
  parser.add_argument("--sweep_file", required=True, metavar="F", help="a gin file of sweep.NAME")
  parser.add_argument("--sweep_param", action="append", default=[], metavar='"sweep.a = 1"',
                      help="a binding that overrides the sweep file's")
  parser.add_argument("--workdir", help="where the trials are kept; default: runs/NAME-OF-F")
  parser.add_argument("--runner", default="local", help="where trials run: local, slurm or ray")
  parser.add_argument("--jobs", type=int, help="trials at once; default: one for two cores")
  parser.add_argument("--retry_failed", action="store_true", help="run the failed trials again")
  parser.add_argument("--debug", action="store_true", help="show tracebacks")
  flags = parser.parse_args(argv)
  if flags.runner not in RUNNERS:
    raise UsageError(f"--runner={flags.runner}: no such runner.{nearest(flags.runner, RUNNERS)} "
                     f"There are: {', '.join(RUNNERS)}")
  if flags.jobs is not None and flags.jobs < 1:
    raise UsageError(f"--jobs={flags.jobs}: must be at least 1")
  return flags


def _run(file: sweep_file.SweepFile, folder: pathlib.Path, flags: argparse.Namespace,
         command: str) -> int:
  with alone(folder), Table(file.metric) as table:
    sweep = Sweep(file, folder, flags.retry_failed, table)
    if probe := sweep.search.probe():
      _check(sweep, probe)
    table.note(f"{folder}: {summary(sweep.current_rows(), sweep.search.count)}")
    try:
      _runner(flags.runner)(sweep, flags.jobs, os.getcwd())
    finally:
      sweep.write()
  rows = sweep.current_rows()
  print(f"{summary(rows, sweep.search.count)}: {folder / results.CSV}, {folder / page.FILE}")
  failed = sweep.failed()
  if failed:
    print(f"failed: {failed[0].id}: {failed[0].message}; --retry_failed runs "
          f"{'it' if len(failed) == 1 else f'the {len(failed)} failed trials'} again")
  if not sweep.is_complete():
    print(f"to go on: {command}")
    return PREEMPTED_STATUS
  return 1 if failed else 0


def _runner(name: str) -> Callable[[Sweep, int | None, str], None]:
  if name == "slurm":
    from replicator.sweeps.runners import slurm
    return slurm.run
  if name == "ray":
    try:
      from replicator.sweeps.runners import ray_tasks
    except ImportError as error:
      raise UsageError("--runner=ray needs Ray: pip install 'replicator[sweep]'") from error
    return ray_tasks.run
  return local.run


def _check(sweep: Sweep, trial: Trial) -> None:
  """Lets the experiment read a trial's configuration, before any trial runs.

  Raises:
    UsageError: it rejects the configuration.
  """
  if sweep.is_proven(trial):
    return
  command = [sys.executable, *trial.words, "--explain"]
  process = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
  if process.returncode:
    lines = [line for line in process.stderr.splitlines() if line.strip()] or ["it said nothing"]
    told = next((line for line in lines if line.startswith("error: ")), lines[-1])
    raise UsageError(f"{sweep.file.experiment} rejects a trial: "
                     f"{told.removeprefix('error: ')}")
