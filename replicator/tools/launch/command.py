"""Rejects a command that would fail on each node of a cluster, or train there independently."""

import argparse
import contextlib
import itertools
import posixpath
import re
from collections.abc import Sequence

from replicator.configuration import differences
from replicator.console import programs
from replicator.errors import UsageError
from replicator.training.workdir.places import is_url


def check(flags: argparse.Namespace, flag: str) -> None:
  """Raises a UsageError if the `command` of `flags` lacks a workdir or a strategy for a cluster.

  Checks only experiments, and programs that get gin files or bindings. `flag` is the user's flag,
  such as `--slurm=train.sh`.
  """
  parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
  parser.add_argument("--workdir", nargs="?")
  parser.add_argument("--gin_file", action="append", default=[])
  parser.add_argument("--gin_param", action="append", default=[])
  try:
    found, _ = parser.parse_known_args(flags.command)
  except argparse.ArgumentError:  # The program will report the mistake.
    return
  is_experiment = _is_experiment(flags.command)
  if not (is_experiment or found.gin_file or found.gin_param):
    return
  _check_workdir(found.workdir, flags, flag)
  wanted = "parameter_server" if flags.ps else "multi_worker_mirrored"
  named = _strategies(found.gin_file, found.gin_param)
  # Other programs may create the Replicator themselves, and a macro may stand for any strategy.
  trains_alone = is_experiment if not named else named[-1] != wanted and named[-1][0] != "%"
  if flags.workers + flags.ps > 1 and trains_alone:
    written = (f"has Replicator.strategy = '{named[-1]}'" if named else
               "sets no Replicator.strategy")
    raise UsageError(f"{flag}: the command {written}, so each process would train alone; add "
                     f"--gin_file=strategies/{wanted}.gin")


def _check_workdir(workdir: str | None, flags: argparse.Namespace, flag: str) -> None:
  if not workdir:
    raise UsageError(f"{flag}: the command has no --workdir, but all processes of a run need the "
                     "same one; add a path that every node sees, or a URL")
  volumes = [path for _, path in flags.volume]
  inside = any(posixpath.normpath(workdir).startswith(posixpath.join(posixpath.normpath(path), ""))
               for path in volumes)
  # A TrainJob may get more volumes from its runtime.
  if flags.kubernetes and flags.kind != "TrainJob" and not (is_url(workdir) or inside):
    raise UsageError(f"{flag}: --workdir={workdir} would be lost with its Pod, and no other Pod "
                     "sees it; use a path in a volume, as with --volume=CLAIM:/work "
                     "--workdir=/work/run, or a URL")


def _is_experiment(command: Sequence[str]) -> bool:
  """Returns whether a command runs a known experiment."""
  return any(before in ("-m", "run") and word.removeprefix("experiments.") in programs.experiments()
             for before, word in itertools.pairwise(command))


def _strategies(files: Sequence[str], params: Sequence[str]) -> list[str]:
  """Returns the strategies set by gin files and bindings, in order; `%NAME` for a macro."""
  statements = [statement for file in files for statement in differences.written_in(file)]
  with contextlib.suppress(ValueError):  # The program will report the mistake.
    statements += map(repr, differences.bindings_in("\n".join(params)))
  return [name for each in statements
          for name in re.findall(r"Replicator', 'strategy', '?([\w%/]+)", each)]
