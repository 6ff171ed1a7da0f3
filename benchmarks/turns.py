"""Contenders of a benchmark: a process each, which take turns.

Thread pools of two frameworks in one process would meet. In turns of a few steps, round after
round, a slow minute of the machine slows all of them; what counts is the median over the turns.
"""

import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence


def take(step: Callable[[], float], calls: int) -> None:
  """In a contender's process: times so many calls of a step for every line of stdin.

  Args:
    step: returns a loss, which it has waited for.
    calls: of one turn.
  """
  for _ in range(2):  # tracing, and what memory and threads need to settle
    step()
  for _ in sys.stdin:
    start = time.perf_counter()
    for _ in range(calls):
      loss = step()
    print(json.dumps({"seconds": time.perf_counter() - start, "loss": loss}), flush=True)


class Contender:
  """A process that takes a turn when asked.

  Args:
    program: the module that was run, which is run again with `--contender=<name>`.
    name: of the contender.
    threads: for OpenMP.
  """

  def __init__(self, program: str, name: str, threads: int):
    self.name = name
    self.seconds: list[float] = []
    self._process = subprocess.Popen(
        [sys.executable, "-m", program, *sys.argv[1:], f"--contender={name}"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": str(threads), "TF_CPP_MIN_LOG_LEVEL": "3"})

  def turn(self) -> float:
    """Seconds of one turn."""
    assert self._process.stdin and self._process.stdout
    try:
      self._process.stdin.write("go\n")
      self._process.stdin.flush()
      answer = self._process.stdout.readline()
    except BrokenPipeError:
      answer = ""
    if not answer:
      raise SystemExit(f"{self.name} failed; its error stands above")
    return json.loads(answer)["seconds"]

  def close(self) -> None:
    self._process.communicate()


def compare(program: str, names: Sequence[str], rounds: int, threads: int, amount: float,
            unit: str, title: str) -> None:
  """Runs the contenders in turns, and prints a table; the others are compared with the first.

  Args:
    program: see `Contender`.
    names: of the contenders.
    rounds: turns of every contender.
    threads: of every contender.
    amount: how much of `unit` is done in one turn.
    unit: what is counted, such as 'examples'.
    title: of the table.
  """
  versions = {package: importlib.metadata.version(package)
              for package in ("tensorflow", "keras", "torch", "jax")
              if importlib.util.find_spec(package)}
  print(f"{_cpu_model()}, {os.cpu_count()} cores, {threads} threads each;",
        ", ".join(f"{name} {version}" for name, version in versions.items()))
  contenders = [Contender(program, name, threads) for name in names]
  for contender in contenders:  # a first turn not counted: each waits until it has started
    contender.turn()
  for _ in range(rounds):
    for contender in contenders:
      contender.seconds.append(contender.turn())
  for contender in contenders:
    contender.close()
  print(f"{title}, {rounds} turns")
  print(f"{'':10} {unit + '/s':>10} {'lowest':>8} {'highest':>8} {f'{names[0]} is':>10}")
  reference = statistics.median(contenders[0].seconds)
  for contender in contenders:
    median = statistics.median(contender.seconds)
    print(f"{contender.name:10} {amount / median:10.1f} {amount / max(contender.seconds):8.1f} "
          f"{amount / min(contender.seconds):8.1f} {median / reference:9.2f}x")


def installed(packages: dict[str, str]) -> list[str]:
  """Of contenders by name, with the package that each needs, those that can run."""
  for name, package in packages.items():
    if not importlib.util.find_spec(package):
      print(f"{package} is not installed: no comparison with {name}")
  return [name for name, package in packages.items() if importlib.util.find_spec(package)]


def _cpu_model() -> str:
  try:
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
      return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
  except (OSError, StopIteration):
    return platform.processor() or platform.machine()
