"""Contenders of a benchmark, which take turns, each in its own process.

Thread pools of two frameworks in one process would compete. With turns of a few steps, round after
round, a slow minute of the machine slows all contenders. The result is the median over the turns.
"""

import contextlib
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.record import Table
from benchmarks.usage import family_mib

from absl import flags

_TO_END = 5  # Seconds that a process has to end by itself.


def define_flags(contenders: Sequence[str]) -> None:
  """Defines `--threads` and `--contender`."""
  flags.DEFINE_integer("threads", 2, "Threads of every contender.", lower_bound=1)
  flags.DEFINE_enum("contender", None, list(contenders),
                    "Only take turns as this contender, on request over stdin.")


def set_threads() -> None:
  """Runs in a contender's process: loads its framework, PyTorch or TensorFlow, with `--threads`.

  The names of the contenders in PyTorch begin with `torch`, `pytorch` or `sb3`.
  """
  if flags.FLAGS.contender.startswith(("torch", "pytorch", "sb3")):
    import torch
    torch.set_num_threads(flags.FLAGS.threads)
  else:
    import replicator  # noqa: F401  (before TensorFlow, so that it is quiet)

    import tensorflow as tf
    tf.config.threading.set_intra_op_parallelism_threads(flags.FLAGS.threads)


def torch_device() -> str:
  """Makes PyTorch compute on the GPU, where there is one, with TensorFlow's precision.

  Returns the kind of the device, such as "cuda".
  """
  import torch
  if torch.cuda.is_available():
    torch.set_default_device("cuda")
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
  return torch.get_default_device().type


def hide_gpus() -> None:
  """Keeps all contenders on CPUs, for a benchmark in which some can use no GPU."""
  os.environ["CUDA_VISIBLE_DEVICES"] = "-1"


def take(step: Callable[[], float], calls: int, untimed: int = 0) -> None:
  """Runs in a contender's process: for every line of stdin, times one turn.

  Args:
    step: takes a step, waits for its loss, or another number, and returns it.
    calls: how many calls of `step` a turn has.
    untimed: how many calls come before these, since they only use up what was made ready while
      others had their turns.
  """
  for _ in range(2):  # Tracing, and time for memory and threads to settle.
    step()
  for _ in sys.stdin:
    for _ in range(untimed):
      step()
    answer(lambda: [step() for _ in range(calls)][-1])


def answer(turn: Callable[[], float]) -> None:
  """Runs in a contender's process: takes a turn; prints its time and its result."""
  start, cpu = time.perf_counter(), time.process_time()
  found = turn()
  print(json.dumps({"seconds": time.perf_counter() - start, "found": found,
                    "cpu": time.process_time() - cpu, "mib": family_mib()}), flush=True)


class Contender:
  """A process that takes a turn on request, or several that take each turn together.

  Args:
    program: the module of the benchmark, which is run again with `--contender=<name>`.
    name: the contender's name.
    threads: threads of OpenMP.
    flags: more flags of the program.
    tf_configs: the `TF_CONFIG` of each process, if they are a cluster. The first one answers.

  Attributes:
    seconds: of the turns that count.
    cpu: seconds of the CPU, which other work changes less, of every turn.
    found: what the step returned at the end of the last turn.
    mib: the highest resident memory after the last turn; see `family_mib`.
  """

  def __init__(self, program: str, name: str, threads: int, flags: Sequence[str] = (),
               tf_configs: Sequence[dict[str, Any] | None] = (None,)):
    self.name = name
    self.seconds: list[float] = []
    self.cpu: list[float] = []
    self.found = 0.0
    self.mib = 0.0
    self._processes = [subprocess.Popen(
        [sys.executable, "-m", program, *sys.argv[1:], *flags, f"--contender={name}"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": str(threads), "TF_CPP_MIN_LOG_LEVEL": "3",
                          "no_grpc_proxy": "127.0.0.1",
                          # They are on one GPU, if there is one.
                          "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
        | ({"TF_CONFIG": json.dumps(config)} if config else {})) for config in tf_configs]

  def turn(self, request: str = "go") -> float:
    """Takes the turn that its processes know by a request; returns its seconds."""
    try:
      for process in self._processes:
        assert process.stdin
        process.stdin.write(f"{request}\n")
        process.stdin.flush()
      answers = [process.stdout.readline() for process in self._processes if process.stdout]
    except BrokenPipeError:
      answers = [""]
    if not all(answers):
      raise SystemExit(f"{self.name} failed; see its error above")
    turn = json.loads(answers[0])
    self.found, self.mib = turn["found"], turn["mib"]
    self.cpu.append(turn["cpu"])
    return turn["seconds"]

  def close(self) -> None:
    """Ends the processes, and those that they have started."""
    for process in self._processes:  # Processes of a cluster wait for each other.
      assert process.stdin
      with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    for process in self._processes:
      with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_TO_END)
      with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
      process.wait()


def run(program: str, names: Sequence[str], rounds: int, threads: int,
        flags: Sequence[str] = ()) -> list[Contender]:
  """Runs contenders in turns; returns them, closed. The arguments are those of `compare`."""
  if hasattr(os, "sched_setaffinity"):  # Not all frameworks take a number of threads.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
  with contextlib.ExitStack() as running:
    contenders = [running.enter_context(contextlib.closing(
        Contender(program, name, threads, flags))) for name in names]
    for contender in contenders:  # The first turn does not count: each waits until it has started.
      contender.turn()
    for _ in range(rounds):
      for contender in contenders:
        contender.seconds.append(contender.turn())
  return contenders


def compare(program: str, names: Sequence[str], rounds: int, threads: int, amount: float,
            unit: str, title: str, flags: Sequence[str] = ()) -> dict[str, float]:
  """Runs the contenders in turns, and prints a table that compares the others with the first.

  Returns the median seconds of a turn of each contender.

  Args:
    program: see `Contender`.
    names: names of the contenders.
    rounds: turns of every contender.
    threads: threads of every contender.
    amount: the number of `unit` per turn.
    unit: the unit, such as 'examples'.
    title: title of the table.
    flags: more flags of the program.
  """
  contenders = run(program, names, rounds, threads, flags)
  table = Table(f"{title}, {rounds} turns, {threads} threads each",
                {f"{unit}/s": ".1f", "lowest": ".1f", "highest": ".1f",
                 f"time, {names[0]} = 1": ".2f", "MiB": ",.0f"})
  medians = {contender.name: statistics.median(contender.seconds) for contender in contenders}
  for contender in contenders:
    median = medians[contender.name]
    table.add(contender.name, amount / median, amount / max(contender.seconds),
              amount / min(contender.seconds), median / medians[names[0]], contender.mib)
  return medians


def installed(packages: dict[str, str]) -> list[str]:
  """Returns the contenders whose package is installed, from a dict of contenders to packages."""
  for name, package in packages.items():
    if not importlib.util.find_spec(package):
      print(f"{package} is not installed: no comparison with {name}")
  return [name for name, package in packages.items() if importlib.util.find_spec(package)]
