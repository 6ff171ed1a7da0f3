"""Checks that a step trains the same on 1 and N replicas, or reports the first difference and why.

    replicator doctor --experiment=experiments.sngan --gin_file=F [--gin_file=G ...]
                      [--gin_param="a.b = 1" ...] [--steps=5] [--precision=float64]
                      [--check_resume]
    replicator doctor --scaling --experiment=... [--bandwidth=B --latency=S]
                      [--step_seconds=S] [--strong]

It computes the first steps on 1, 2 and 4 logical CPUs, in 2 micro-batches and in 2 processes, with
the same seed and global batch; the strategy and the precision of the gin files are ignored. Every
loss, averaged gradient and variable must agree to 1e-9 in float64, or to 1e-3 in float32.

With `--check_resume`, a run that is interrupted and resumed in a new process must equal an
uninterrupted run bit for bit, under the configured strategy. With `--scaling`, it counts the
collectives of the step, times it on one replica, and predicts its efficiency on 2 to 512 replicas.

Exit status: 0 all agree; 1 something differs or fails; 2 bad command line or configuration.
"""

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence

from replicator.console.command import Parser, status_of
from replicator.console.error_line import in_one_line
from replicator.doctor.experiment import hand_over, load
from replicator.doctor.verdict import DIFFERS, FAILED, SKIPPED, CheckResult
from replicator.errors import UsageError
from replicator.tools.scaling import model


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line `argv` (default: this process's); returns the exit status."""
  return status_of(_check, argv, lambda error: f"{in_one_line(error)}{_hint(error)}")


def _check(words: list[str]) -> int:
  flags = _parse(words)
  # The check of replicas needs several devices of one kind, and every machine has CPUs.
  if not (flags.check_resume or flags.scaling):
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
  from replicator.configuration.checks import missing_values_reported
  with missing_values_reported():
    main = load(flags.experiment)
    work = (_predict if flags.scaling else
            _check_resume if flags.check_resume else _check_replicas)
    return work(main, flags, words)


def _hint(error: BaseException) -> str:
  """Returns a hint for a step that has only ever run in float32, or ''."""
  text = str(error)
  if re.search(r"\b(float32|float tensor)\b", text) and re.search(r"\b(float64|double)\b", text):
    return " (the proof is in float64; --precision=float32 compares loosely)"
  return ""


def _check_replicas(main: Callable[[str], None], flags: argparse.Namespace, words: list[str]
                    ) -> int:
  from replicator.doctor.replica_check import ReplicaCheck
  steps, precision = flags.steps or 5, flags.precision or "float64"
  check = ReplicaCheck(main, flags.gin_file, flags.gin_param, steps, precision)
  if flags.record:
    hand_over(flags.record, check.record_process())
    return 0
  check.prepare()
  print(f"{flags.experiment}: {steps} steps of {check.reference.evidence.batch_size} examples in "
        f"{precision}, against 1 replica\n(the largest relative difference of a batch, loss, "
        f"gradient or variable; up to {check.tolerance:g} is rounding)", flush=True)
  return _conclude(check.results(words), "trains the same however it is divided",
                   "does not train or log the same when it is divided",
                   "trains the same in every variant that was compared")


def _check_resume(main: Callable[[str], None], flags: argparse.Namespace, words: list[str]) -> int:
  from replicator.doctor import resume_check, resume_recording
  steps = flags.steps or 6
  if flags.record:
    hand_over(flags.record, resume_recording.record(
        main, flags.gin_file, flags.gin_param, flags.train_in, flags.train_until, steps))
    return 0
  check = resume_check.ResumeCheck(words, flags.gin_file, flags.gin_param, steps)
  print(f"{flags.experiment}: {steps} steps, against the same run stopped after step {steps // 2} "
        "and resumed in a new process\n(every logged scalar and every saved variable, bit for bit)",
        flush=True)
  return _conclude(check.results(), "resumes exactly", "does not resume exactly")


def _predict(main: Callable[[str], None], flags: argparse.Namespace, words: list[str]) -> int:
  from replicator.doctor.scaling import measure
  cost = measure(main, flags.gin_file, flags.gin_param,
                 0 if flags.step_seconds else flags.steps or 10)
  print(f"{flags.experiment}: {cost.batch_size} examples "
        + ("over all replicas (strong scaling)" if flags.strong else
           "on every replica (weak scaling; --strong divides them)"))
  seconds = flags.step_seconds or cost.seconds
  print(f"  one replica computes for {1000 * seconds:.4g} ms per step, "
        + ("as --step_seconds says" if flags.step_seconds else "measured here"))
  print(f"  each replica takes part in {model.counted(cost.transfers)}\n"
        f"  each of N replicas keeps {model.kept(cost.weights, cost.state, cost.transfers)}\n"
        "efficiency, if computation and communication do not overlap:")
  networks = ({"given": model.Network(flags.bandwidth, flags.latency)} if flags.bandwidth
              else model.NETWORKS)
  most = cost.batch_size if flags.strong else max(model.REPLICAS)
  print(*model.table(seconds, cost.transfers, networks, most, flags.strong), sep="\n")
  return 0


def _conclude(results: Iterator[CheckResult], good: str, bad: str, partly: str = "") -> int:
  """Prints each row as soon as it is known, and a conclusion; returns the exit status.

  `partly` is the conclusion if some rows were not compared.
  """
  verdicts = set()
  for result in results:
    print(result, flush=True)
    verdicts.add(result.verdict)
  is_bad = bool(verdicts & {DIFFERS, FAILED})
  if verdicts <= {SKIPPED}:
    print("Nothing could be compared.")
    return 1
  print(f"This step {bad if is_bad else partly if SKIPPED in verdicts else good}.")
  return int(is_bad)


def _parse(argv: list[str]) -> argparse.Namespace:
  parser = Parser(description="Proves that a step trains the same on 1 and N replicas.")
  parser.add_argument("--experiment", required=True, metavar="MODULE", type=os.path.expanduser,
                      help="experiments.sngan, or path/to/file.py")
  parser.add_configuration()
  modes = parser.add_mutually_exclusive_group()
  modes.add_argument("--check_resume", action="store_true",
                     help="prove that an interrupted run resumes exactly")
  modes.add_argument("--scaling", action="store_true",
                     help="predict the efficiency on many replicas")
  parser.add_argument("--steps", type=int, help="how many steps to compare, or calls to time")
  parser.add_argument("--precision", choices=["float64", "float32"],
                      help="float64 to prove, float32 to compare loosely")
  scaling = parser.add_argument_group("with --scaling")
  scaling.add_argument("--bandwidth", type=_positive, help="of a replica, in bytes per second")
  scaling.add_argument("--latency", type=_positive, help="of a hop, in seconds")
  scaling.add_argument("--step_seconds", type=_positive, help="what a replica takes elsewhere")
  scaling.add_argument("--strong", action="store_true", help="divide the batch over the replicas")
  for name, kind in (("record", str), ("train_in", str), ("train_until", int)):
    parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)  # For its processes.
  flags = parser.parse_args(argv)
  lowest = 2 if flags.check_resume else 1
  if flags.steps is not None and flags.steps < lowest:
    raise UsageError(f"--steps={flags.steps}: must be at least {lowest}")
  for name in ("bandwidth", "latency", "step_seconds", "strong"):
    if getattr(flags, name) and not flags.scaling:
      raise UsageError(f"--{name}: works only with --scaling")
  if bool(flags.bandwidth) != bool(flags.latency):
    raise UsageError("--bandwidth and --latency: give both for your own network, such as "
                     "--bandwidth=12.5e9 --latency=26e-6, or neither")
  if flags.precision:
    flags.gin_param.append(f"train.precision = '{flags.precision}'")
  return flags


def _positive(text: str) -> float:
  value = float(text)
  if not 0 < value < math.inf:
    raise argparse.ArgumentTypeError(f"{text} is not above 0")
  return value


if __name__ == "__main__":
  sys.exit(main())
