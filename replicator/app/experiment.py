"""The command line of an experiment: flags, configuration, exit status.

    python -m experiments.NAME --gin_file=F [--gin_file=G ...] [--gin_param="a.b = 1" ...]
                               [--workdir=DIR] [--limit_steps=N] [--from_step=N] [--take_over]
                               [--eager] [--allow_partial_restore] [--explain[=all]] [--diff=RUN]
                               [--debug]

Exit status: 0 done; 1 failed; 2 bad command line or configuration; 42 preempted and saved.
"""

import argparse
import atexit
import contextlib
import os
import pathlib
import shlex
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import NoReturn

from replicator.app import config, devices, start
from replicator.app.explain import explain
from replicator.configuration import reference
from replicator.configuration.checks import missing_values_reported
from replicator.console.command import Parser, experiment, program, status_of
from replicator.console.error_line import in_one_line
from replicator.errors import (
  PREEMPTED_STATUS,
  OneLineError,
  Preempted,
  UsageError,
  chain_of,
  first_line,
)
from replicator.step import context
from replicator.strategies.cluster import tf_config
from replicator.training import from_step, settings
from replicator.training.checkpoints import partial
from replicator.training.workdir import claim, lock, places
from replicator.training.workdir.places import is_url

import keras
import tensorflow as tf


def run(main: Callable[[str], None], argv: Sequence[str] | None = None) -> NoReturn:
  """Runs `main(workdir)` as an experiment, and exits with its status.

  The experiment resumes if the workdir has a checkpoint. Without `--workdir`, the workdir is a new
  folder, `runs/NAME-<utc time>`.
  """
  if _handing_over:
    raise _Handed(main)
  words = list(sys.argv[1:] if argv is None else argv)
  start.begin(experiment(), words)
  start.loaded()
  context.run.is_program = True
  status = _run(main, words)
  # TensorFlow takes a while to shut down. A signal in that time must not change the status.
  atexit.register(signal.signal, signal.SIGTERM, signal.SIG_IGN)
  sys.exit(status)


_handing_over = False


class _Handed(BaseException):
  """An exception that carries `main` out of a program, past any `except Exception`."""


def main_of(program: Callable[[], object]) -> Callable[[str], None] | None:
  """Returns the `main` that `program()` passes to `run`, and ends the program there; or None."""
  global _handing_over
  _handing_over = True
  try:
    program()
  except _Handed as handed:
    return handed.args[0]
  finally:
    _handing_over = False
  return None


def _run(main: Callable[[str], None], argv: list[str]) -> int:
  workdir: str | None = None

  def work(words: list[str]) -> int:
    nonlocal workdir
    try:
      flags = _parse(words)
      config.parse(flags.gin_file, flags.gin_param)
      with missing_values_reported():
        if flags.explain or flags.diff:
          explain(main, flags)
          return 0
        if flags.from_step is not None and not flags.workdir:
          raise UsageError(f"--from_step={flags.from_step}: goes back in a run; add its "
                           "--workdir")
        if not flags.workdir and tf_config.are_several(os.environ):
          raise UsageError("--workdir: required when several processes make up one run; every "
                           "process must see the same folder")
        workdir = flags.workdir or start.new_workdir(experiment())
        return _train(main, flags, workdir, words)
    finally:
      start.end()

  # Both would hide the cause of an error in a layer, in evaluations and in steps.
  keras.config.disable_traceback_filtering()
  warnings.filterwarnings("ignore", "Layer .* looks like it has unbuilt state")
  return status_of(work, argv, lambda error: _describe(error, argv, workdir))


def _train(main: Callable[[str], None], flags: argparse.Namespace, workdir: str, words: list[str]
           ) -> int:
  """Calls `main` according to the flags; returns the exit status."""
  if flags.eager:
    # The input pipeline stays compiled, and TensorFlow warns about it at every use.
    warnings.filterwarnings("ignore", "Even though the `tf.config.experimental_run_functions")
    tf.config.run_functions_eagerly(True)
  if flags.allow_partial_restore:
    partial.allow(True)
  if os.path.exists(workdir) and not os.path.isdir(workdir):
    raise UsageError(f"--workdir={workdir}: is a file; choose a folder")
  settings.limit_steps(flags.limit_steps)
  from_step.go_on_from(flags.from_step)
  claim.take_over(flags.take_over)
  if tf_config.is_chief(os.environ) and not is_url(workdir):
    lock.check(pathlib.Path(workdir))
  try:
    with places.local(workdir, tf_config.is_chief(os.environ)) as folder:
      try:
        devices.call(main, str(folder))
      except Exception as error:
        if not isinstance(chain_of(error)[-1], OneLineError):
          with contextlib.suppress(OSError):  # The disk may be full.
            pathlib.Path(folder, _traceback_file()).write_text(traceback.format_exc())
        raise
  except Preempted as stopped:
    print(f"{first_line(stopped)}; to resume: {_command(words, workdir)}")
    return PREEMPTED_STATUS
  return 0


def _parse(argv: list[str]) -> argparse.Namespace:
  is_read = {"--help", "-h"} & set(argv)
  parser = Parser(description="Trains; the same command with the same workdir resumes the run.",
                  formatter_class=argparse.RawDescriptionHelpFormatter,
                  epilog=f"its gin parameters, in addition to those of its parts:\n\n"
                         f"{reference.parameters_of('__main__')}" if is_read else None)
  parser.add_configuration()
  parser.add_argument("--workdir", type=_folder,
                      help="where the run writes its files and resumes from: a folder, or a URL "
                      "such as s3://bucket/run")
  parser.add_argument("--limit_steps", type=_steps, metavar="N",
                      help="end after the first N steps, for a quick test of every part of the "
                      "run: the last step is logged, evaluated and saved")
  parser.add_argument("--from_step", type=_step, metavar="N",
                      help="continue from the checkpoint of step N, and set aside everything "
                      "after it")
  parser.add_argument("--take_over", action="store_true",
                      help="take over the workdir from a process on another machine that is gone")
  parser.add_argument("--eager", action="store_true", help="run line by line, for debugging")
  parser.add_argument("--allow_partial_restore", action="store_true",
                      help="restore what fits from a checkpoint, or continue with different "
                      "data, and report what does not fit")
  parser.add_argument("--explain", nargs="?", const="set", choices=("set", "all"),
                      help="print what is set and where, with --explain=all also every other value "
                      "that the run would use, and exit")
  parser.add_argument("--diff", metavar="RUN", type=_folder,
                      help="print what differs from the run in this workdir, and exit")
  return parser.parse_args(argv)


def _step(text: str) -> int:
  if not text.isdecimal():
    raise argparse.ArgumentTypeError(f"'{text}': must be the step of a checkpoint")
  return int(text)


def _steps(text: str) -> int:
  if not (text.isdecimal() and int(text)):
    raise argparse.ArgumentTypeError(f"'{text}': must be a number of steps, such as 20")
  return int(text)


def _folder(name: str) -> str:
  if not name:
    raise argparse.ArgumentTypeError("is empty; give the name of a folder")
  is_url(name)  # Raises an error for an invalid URL.
  return os.path.expanduser(name)


def _command(words: list[str], workdir: str) -> str:
  given = any(word.startswith("--workdir") for word in words)
  return shlex.join([*program(), *words, *([] if given else [f"--workdir={workdir}"])])


def _describe(error: BaseException, words: list[str], workdir: str | None) -> str:
  line = in_one_line(error)
  if "--debug" in words:
    return line
  path = f"{workdir}/{_traceback_file()}"
  if workdir and (is_url(workdir) or os.path.isfile(path)):
    return f"{line}; the traceback is in {path}"
  return f"{line} (--debug shows the traceback)"


def _traceback_file() -> str:
  worker = tf_config.number_of(os.environ)
  return f"traceback-worker-{worker}.txt" if worker else "traceback.txt"
