"""Proves that a step trains the same on 1 and N replicas, or says where it does not and why.

    python -m replicator.doctor --experiment=experiments.sngan --gin_file=F [--gin_file=G ...]
                                [--gin_param="a.b = 1" ...] [--steps=5] [--precision=float64]
                                [--check_resume]

`--experiment` is the experiment's module, or its file. The first steps of it are computed on 1, 2
and 4 logical CPUs, in 2 micro-batches and in 2 processes, with the same seed and global
batch; no evaluation, no checkpoint. Every loss, averaged gradient and variable must agree to 1e-9
in float64, or to 1e-3 in `--precision=float32`, where only the first 5 steps or so can: the
dynamics amplify rounding. Strategy, precision and micro-batches of the gin files do not count.

With `--check_resume` it proves instead that a run that is interrupted, and resumed in a new
process, is bit for bit the run that is not: every scalar and every variable of `--steps` steps
(6 unless told otherwise), under the strategy and the precision of the gin files.

Exit status: 0 all agree; 1 something differs or fails; 2 bad command line or configuration.
"""

import argparse
import importlib.util
import os
import re
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence

from replicator.console import quiet
from replicator.console.flags import Parser
from replicator.errors import UsageError, first_line, in_one_line


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line `argv` (default: this process's); returns the exit status."""
  words = list(sys.argv[1:] if argv is None else argv)
  try:
    flags = _parse(words)
    if not flags.check_resume:  # It needs several devices of a kind: every machine has CPUs.
      os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    quiet.import_tensorflow()
    return _check_resume(flags, words) if flags.check_resume else _examine(flags, words)
  except UsageError as error:
    print(f"error: {first_line(error)}", file=sys.stderr)
    return 2
  except Exception as error:
    from replicator.configuration.checks import missing_value
    if missing := missing_value(error):
      print(f"error: {missing}", file=sys.stderr)
      return 2
    if "--debug" in words:
      traceback.print_exc()
    print(f"error: {in_one_line(error)}{_hint(error)}", file=sys.stderr)
    return 1


def _hint(error: Exception) -> str:
  """Of what a step does wrong that only ever ran in float32."""
  text = str(error)
  if re.search(r"\b(float32|float tensor)\b", text) and re.search(r"\b(float64|double)\b", text):
    return (" (the proof is in float64: cast to keras.config.floatx() instead of tf.float32, or "
            "compare loosely with --precision=float32)")
  return ""


def _examine(flags: argparse.Namespace, words: list[str]) -> int:
  main = load(flags.experiment)
  from replicator.doctor.replica_check import AGREES, DIFFERS, FAILED, Examination
  steps, precision = flags.steps or 5, flags.precision or "float64"
  examination = Examination(main, flags.gin_file, flags.gin_param, steps, precision)
  if flags.record:
    examination.record_process(flags.record)
    return 0
  examination.prepare()
  print(f"{flags.experiment}: {steps} steps of {examination.reference.batch_size} examples "
        f"in {precision}, against 1 replica\n(the largest relative difference of a loss, a "
        f"gradient or a variable; up to {examination.tolerance:g} is rounding)", flush=True)
  verdicts = set()
  for row in examination.rows(words):
    print(row, flush=True)
    verdicts.add(row.verdict)
  if verdicts & {DIFFERS, FAILED}:
    print("This step does not train the same however it is divided.")
    return 1
  if AGREES not in verdicts:
    print("Nothing could be compared.")
    return 1
  print("This step trains the same however it is divided.")
  return 0


def _check_resume(flags: argparse.Namespace, words: list[str]) -> int:
  main = load(flags.experiment)
  from replicator.doctor import resume_check
  from replicator.doctor.replica_check import DIFFERS, FAILED
  steps, params = flags.steps or 6, list(flags.gin_param)
  if flags.precision:
    params.append(f"train.precision = '{flags.precision}'")
  if flags.record:
    resume_check.train(main, flags.gin_file, params, flags.train_in, flags.train_until,
                       flags.record, steps)
    return 0
  check = resume_check.ResumeCheck(words, flags.gin_file, params, steps)
  print(f"{flags.experiment}: {steps} steps, against the same run ended after step {steps // 2} "
        "and resumed in a new process\n(every logged scalar and every saved variable, bit for bit)",
        flush=True)
  verdicts = set()
  for row in check.rows():
    print(row, flush=True)
    verdicts.add(row.verdict)
  if verdicts & {DIFFERS, FAILED}:
    print("This step does not resume exactly.")
    return 1
  print("This step resumes exactly.")
  return 0


def _parse(argv: list[str]) -> argparse.Namespace:
  parser = Parser(prog="python -m replicator.doctor", allow_abbrev=False,
                  description="Proves that a step trains the same on 1 and N replicas.")
  parser.add_argument("--experiment", required=True, metavar="MODULE",
                      help="experiments.sngan, or path/to/file.py")
  parser.add_argument("--gin_file", action="append", default=[], metavar="F", help="a gin file")
  parser.add_argument("--gin_param", action="append", default=[], metavar='"a.b = 1"',
                      help="a gin binding; overrides the files")
  parser.add_argument("--check_resume", action="store_true",
                      help="prove that an interrupted run goes on exactly")
  parser.add_argument("--steps", type=int, help="how many steps to compare")
  parser.add_argument("--precision", choices=["float64", "float32"],
                      help="float64 to prove, float32 to compare loosely")
  parser.add_argument("--debug", action="store_true", help="show tracebacks")
  for name, kind in (("record", str), ("train_in", str), ("train_until", int)):
    parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)  # For its processes.
  flags = parser.parse_args(argv)
  lowest = 2 if flags.check_resume else 1
  if flags.steps is not None and flags.steps < lowest:
    raise UsageError(f"--steps={flags.steps}: must be at least {lowest}")
  return flags


def load(experiment: str) -> Callable[[str], None]:
  """The `main` that an experiment, a module's name or a file, hands to `replicator.app.run`.

  Raises:
    UsageError: there is no such module, or it does not call `app.run`.
  """
  from replicator.app.experiment import main_of  # Not before the devices are chosen.
  is_file = experiment.endswith(".py")
  try:
    found = os.path.isfile(experiment) if is_file else importlib.util.find_spec(experiment)
  except (ImportError, ValueError):
    found = False
  if not found:
    raise UsageError(f"--experiment={experiment}: no such {'file' if is_file else 'module'}; write "
                     "experiments.NAME or path/to/file.py")
  arguments, sys.argv = sys.argv, [experiment]
  try:
    if is_file:
      sys.path.insert(0, os.path.dirname(os.path.abspath(experiment)))
      main = main_of(lambda: runpy.run_path(experiment, run_name="__main__"))
    else:
      main = main_of(lambda: runpy.run_module(experiment, run_name="__main__", alter_sys=True))
  finally:
    sys.argv = arguments
  if main is None:
    raise UsageError(f"--experiment={experiment}: it does not call replicator.app.run(main) when "
                     "it is run, as an experiment does")
  return main


if __name__ == "__main__":
  quiet.drop_native_log()
  exit_status = main()
  quiet.finish()
  sys.exit(exit_status)
