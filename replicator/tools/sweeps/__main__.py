"""Runs many trials of one experiment: a grid, a search, or a population.

Exit status: 0 if all trials are done or pruned; 1 if some failed; 2 for a bad command line or sweep
file; 42 if stopped: the trials saved, and the same command resumes the sweep.
"""

import argparse
import os
import pathlib
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence

from replicator.console.command import Parser, program, status_of
from replicator.errors import PREEMPTED_STATUS, UsageError
from replicator.tools.sweeps import results, sweep_file
from replicator.tools.sweeps.runners import local, ray_tasks, slurm
from replicator.tools.sweeps.sweep import Sweep
from replicator.tools.sweeps.trials import FAILED, WAITING
from replicator.training.workdir import lock
from replicator.training.workdir.places import refuse_url

RUNNERS = {"local": local.run, "slurm": slurm.run, "ray": ray_tasks.run}


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line `argv` (default: this process's); returns the exit status."""
  return status_of(_start, argv)


def _start(words: list[str]) -> int:
  flags = _parse(words)
  file = sweep_file.read(flags.sweep_file, flags.sweep_param)
  folder = pathlib.Path(flags.workdir or f"runs/{pathlib.Path(flags.sweep_file).stem}")
  if flags.explain:
    sweep = Sweep(file, folder, flags.retry_failed, in_memory=True)
    print("\n".join(_explanation(sweep, flags.retry_failed)), flush=True)
    _check(sweep)
    return 0
  with lock.owned(folder):
    sweep = Sweep(file, folder, flags.retry_failed)
    _check(sweep)
    try:
      RUNNERS[flags.runner](sweep, flags.jobs)
    finally:
      sweep.write()
  return _report(sweep, shlex.join([*program(), *words]))


def _parse(argv: list[str]) -> argparse.Namespace:
  parser = Parser(description="Runs the trials of a sweep; the same command resumes the sweep.")
  parser.add_argument("--sweep_file", required=True, metavar="F", type=os.path.expanduser,
                      help="a gin file that binds sweep.NAME")
  parser.add_argument("--sweep_param", action="append", default=[], metavar='"sweep.a = 1"',
                      help="a binding that overrides the sweep file's")
  parser.add_argument("--workdir", type=os.path.expanduser,
                      help="the folder of the trials; default: runs/NAME-OF-F")
  parser.add_argument("--runner", default="local", choices=list(RUNNERS), help="where trials run")
  parser.add_argument("--jobs", type=int,
                      help="number of trials at a time; default: one per two cores")
  parser.add_argument("--retry_failed", action="store_true", help="run the failed trials again")
  parser.add_argument("--explain", action="store_true",
                      help="print the trials and their commands, without running them")
  parser.add_argument("--debug", action="store_true", help="show tracebacks")
  flags = parser.parse_args(argv)
  if flags.workdir:
    refuse_url(flags.workdir, "--workdir", "the trials of a sweep share a folder")
  if flags.jobs is not None and flags.jobs < 1:
    raise UsageError(f"--jobs={flags.jobs}: must be at least 1")
  return flags


def _explanation(sweep: Sweep, retry_failed: bool) -> Iterator[str]:
  """Yields lines about the trials of a sweep: their state and their commands."""
  file, search = sweep.file, sweep.search
  yield (f"{sweep.folder}: {search.stage}{search.count} trials of {file.experiment}; the best has "
         f"the {file.best()} {file.metric}")
  yield from results.apart(sweep.results.values())
  for number, trial in enumerate(search.trials.values(), 1):
    record = sweep.record(trial)
    status = "to run" if record.status == WAITING else record.status
    if record.status != WAITING and not record.is_ended(retry_failed):
      status += ", to resume"
    yield f"\n{number}. {trial.id}: {status}\n   {trial.command}"
  yield from search.explained()


def _check(sweep: Sweep) -> None:
  """Raises a UsageError if the experiment rejects the configuration of the next trial."""
  trial = sweep.search.peek()
  if trial is None:
    return
  process = subprocess.run([*trial.words(), "--explain"], capture_output=True, text=True,
                           stdin=subprocess.DEVNULL)
  if process.returncode:
    lines = [line for line in process.stderr.splitlines() if line.strip()] or ["no output"]
    reason = next((line for line in lines if line.startswith("error: ")), lines[-1])
    raise UsageError(f"sweep.experiment = '{sweep.file.experiment}' rejects a trial: "
                     f"{reason.removeprefix('error: ')}")


def _report(sweep: Sweep, command: str) -> int:
  """Prints how the sweep ended; returns the exit status."""
  current = sweep.current()
  print(f"{sweep.search.stage}{results.summary(current, sweep.search.count)}: "
        f"{sweep.folder / results.CSV}, {sweep.folder / results.PAGE}")
  failed = [result.record for result in current if result.record.status == FAILED]
  if failed:
    print(f"failed: {failed[0].id}: {failed[0].message}; --retry_failed runs "
          f"{'it' if len(failed) == 1 else f'the {len(failed)} failed trials'} again")
  if not sweep.is_complete():
    print(f"to resume: {command}")
    return PREEMPTED_STATUS
  return 1 if failed else 0


if __name__ == "__main__":
  sys.exit(main())
