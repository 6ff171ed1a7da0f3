"""The startup time of the default job: from its command to its first step.

  python -m benchmarks.start [--turns=3] [--jobs='one device']

Each turn starts the job in a new process and workdir, and reads what it prints: on one device, and
on several replicas with and without `train.check_first_step`. CPU seconds are those of the process,
which other work on the machine hardly affects; the longest silence is the longest time between two
lines of output.
"""

import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks.record import Table
from benchmarks.usage import cpu_seconds

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("turns", 3, "How often the start is timed.", lower_bound=1)

SETTINGS = ("train.steps = 1", "train.log_every = 1")


def mirrored(replicas: int, *settings: str) -> list[str]:
  return ["Replicator.strategy = 'mirrored'", f"Replicator.logical_cpus = {replicas}", *settings]


XLA, UNCHECKED = "Replicator.jit_compile = True", "train.check_first_step = False"
JOBS = {
    "one device": [],
    "2 replicas": mirrored(2), "2 replicas unchecked": mirrored(2, UNCHECKED),
    "4 replicas": mirrored(4), "4 replicas unchecked": mirrored(4, UNCHECKED),
    "2 replicas with XLA": mirrored(2, XLA),
    "2 replicas with XLA unchecked": mirrored(2, XLA, UNCHECKED)}
flags.DEFINE_list("jobs", list(JOBS), "Those that are timed.")


def measure(job: str) -> dict[str, float]:
  """Measures seconds until the first line and step, CPU seconds, and the longest silence."""
  with tempfile.TemporaryDirectory() as workdir:
    begun = last = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "experiments.sngan", "--gin_file=configs/sngan_digits.gin",
         f"--workdir={workdir}",
         *(f"--gin_param={setting}" for setting in [*SETTINGS, *JOBS[job]])],
        text=True, stdout=subprocess.PIPE) as process:
      assert process.stdout is not None
      found = {"silence": 0.0}
      for line in process.stdout:
        now = time.monotonic()
        found.setdefault("first line", now - begun)
        found["silence"], last = max(found["silence"], now - last), now
        if line.startswith("step 1/"):
          found.update({"first step": now - begun, "cpu": cpu_seconds(process.pid)})
          process.kill()
          break
  return found


def main(argv: list[str]) -> None:
  del argv
  found: dict[str, list[dict[str, float]]] = {job: [] for job in FLAGS.jobs}
  for _ in range(FLAGS.turns):
    for job, turns in found.items():
      turns.append(measure(job))
  table = Table(f"seconds of the start, and the longest silence; medians of {FLAGS.turns}",
                {"first line": ".1f", "first step": ".1f", "CPU": ".1f", "silence": ".1f"})
  for job, turns in found.items():
    middle = {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
    table.add(job, middle["first line"], middle["first step"], middle["cpu"], middle["silence"])


if __name__ == "__main__":
  app.run(main)
