"""Contenders of a benchmark, which take turns in a process each.

Thread pools of two frameworks in one process would compete. With turns of a few steps, round after
round, a slow minute of the machine slows all contenders. The result is the median over the turns.
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
  """Runs in a contender's process: for every line of stdin, times one turn.

  Args:
    step: takes a step, waits for its loss and returns it.
    calls: how many calls of `step` a turn has.
  """
  for _ in range(2):  # Tracing, and time for memory and threads to settle.
    step()
  for _ in sys.stdin:
    start = time.perf_counter()
    for _ in range(calls):
      loss = step()
    print(json.dumps({"seconds": time.perf_counter() - start, "loss": loss}), flush=True)


class Contender:
  """A process that takes a turn on request.

  Args:
    program: the module of the benchmark, which is run again with `--contender=<name>`.
    name: the contender's name.
    threads: threads of OpenMP.
  """

  def __init__(self, program: str, name: str, threads: int):
    self.name = name
    self.seconds: list[float] = []
    self._process = subprocess.Popen(
        [sys.executable, "-m", program, *sys.argv[1:], f"--contender={name}"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": str(threads), "TF_CPP_MIN_LOG_LEVEL": "3"})

  def turn(self) -> float:
    """Takes a turn; returns its seconds."""
    assert self._process.stdin and self._process.stdout
    try:
      self._process.stdin.write("go\n")
      self._process.stdin.flush()
      answer = self._process.stdout.readline()
    except BrokenPipeError:
      answer = ""
    if not answer:
      raise SystemExit(f"{self.name} failed; see its error above")
    return json.loads(answer)["seconds"]

  def close(self) -> None:
    self._process.communicate()


def compare(program: str, names: Sequence[str], rounds: int, threads: int, amount: float,
            unit: str, title: str) -> dict[str, float]:
  """Runs the contenders in turns, and prints a table that compares the others with the first.

  Returns the median seconds of a turn of each contender.

  Args:
    program: see `Contender`.
    names: names of the contenders.
    rounds: turns of every contender.
    threads: threads of every contender.
    amount: how many `unit` one turn has.
    unit: what is counted, such as 'examples'.
    title: title of the table.
  """
  versions = {package: importlib.metadata.version(package)
              for package in ("tensorflow", "keras", "torch", "jax")
              if importlib.util.find_spec(package)}
  print(f"{_cpu_model()}, {os.cpu_count()} cores, {threads} threads each;",
        ", ".join(f"{name} {version}" for name, version in versions.items()))
  contenders = [Contender(program, name, threads) for name in names]
  for contender in contenders:  # The first turn does not count: each waits until it has started.
    contender.turn()
  for _ in range(rounds):
    for contender in contenders:
      contender.seconds.append(contender.turn())
  for contender in contenders:
    contender.close()
  print(f"{title}, {rounds} turns")
  print(f"{'':15} {unit + '/s':>10} {'lowest':>8} {'highest':>8} {f'{names[0]} is':>10}")
  medians = {contender.name: statistics.median(contender.seconds) for contender in contenders}
  reference = medians[names[0]]
  for contender in contenders:
    median = medians[contender.name]
    print(f"{contender.name:15} {amount / median:10.1f} {amount / max(contender.seconds):8.1f} "
          f"{amount / min(contender.seconds):8.1f} {median / reference:9.2f}x")
  return medians


def installed(packages: dict[str, str]) -> list[str]:
  """The contenders whose package is installed, of a dict from contenders to packages."""
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
