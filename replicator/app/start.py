"""Prints the first lines of an experiment, until its training loop takes over.

    experiment  sngan, configs/sngan_digits.gin
    workdir     runs/sngan-20260203-101112
    loading TensorFlow: 4s
"""

import argparse
import datetime
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Sequence

from replicator.console import gin_files, programs
from replicator.console.command import INTERRUPTED_STATUS
from replicator.console.formatting import labeled
from replicator.console.status import Status
from replicator.strategies.cluster import tf_config

_OTHER_OUTPUT = ("--explain", "--diff", "--help", "-h")  # With these flags, nothing is trained.

_status: Status | None = None
_workdir: str | None = None  # The announced workdir, if the command line does not name one.


def begin(name: str, argv: Sequence[str]) -> None:
  """Announces the experiment `name` and its workdir, if the command line `argv` trains one.

  Only the chief of a cluster prints. Until `loaded` is called, Ctrl-C ends the process at once,
  because an exception would interrupt imports. A second call does nothing.
  """
  global _status, _workdir
  if _status or not tf_config.is_chief(os.environ) or any(
      word.partition("=")[0] in _OTHER_OUTPUT for word in argv):
    return
  if threading.current_thread() is threading.main_thread():
    stderr = os.dup(2)  # Importing TensorFlow replaces it.
    signal.signal(signal.SIGINT, lambda number, frame: _end_at_once(stderr))
  _status = Status().__enter__()
  # Only the flags to announce; mistakes are reported when the command line is parsed later.
  parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
  parser.add_argument("--gin_file", action="append", nargs="?", default=[])
  parser.add_argument("--workdir", nargs="?")
  flags, _ = parser.parse_known_args(argv)
  files = [gin_files.found(name) for name in flags.gin_file if name]
  _status.note(labeled("experiment", ", ".join([name, *files])))
  if not flags.workdir and not tf_config.are_several(os.environ):
    _workdir = new_workdir(name)
  if where := flags.workdir or _workdir:
    _status.note(labeled("workdir", where))
  if "tensorflow" not in sys.modules:
    _status.doing("loading TensorFlow")


def begin_program() -> None:
  """Announces the experiment that is this process's program, `python -m experiments.NAME`."""
  spec = getattr(sys.modules["__main__"], "__spec__", None)
  package, _, name = spec.name.partition(".") if spec else ("", "", "")
  if package == "experiments" and name in programs.experiments() and (
      multiprocessing.parent_process() is None):
    begin(name, sys.argv[1:])


def loaded() -> None:
  """Shows that all modules are imported, and that the program has started."""
  if _status:
    _status.doing("preparing data and networks")
    if threading.current_thread() is threading.main_thread():
      signal.signal(signal.SIGINT, signal.default_int_handler)


def end() -> None:
  """Ends the output, and forgets the announced workdir."""
  global _status, _workdir
  if _status:
    _status.__exit__()
  _status = _workdir = None


def new_workdir(experiment: str) -> str:
  """Returns the announced workdir, or a new name."""
  now = datetime.datetime.now(datetime.timezone.utc)
  return _workdir or f"runs/{experiment}-{now:%Y%m%d-%H%M%S}"


def _end_at_once(stderr: int) -> None:
  end()
  os.write(stderr, b"error: interrupted\n")
  os._exit(INTERRUPTED_STATUS)
