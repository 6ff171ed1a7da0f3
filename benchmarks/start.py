"""The start of the default job: from its command to its first step.

  python -m benchmarks.start [--turns=3]

Each turn starts the job in a new process and workdir, and reads what it prints. The CPU seconds are
those of the process, which other work on the machine changes little; the longest silence is the
longest time between two lines.
"""

import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks.usage import cpu_seconds

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("turns", 3, "How often the start is timed.", lower_bound=1)

SETTINGS = ("train.steps = 1", "train.log_every = 1")


def measure() -> dict[str, float]:
  """Seconds until the first line and the first step, CPU seconds, and the longest silence."""
  with tempfile.TemporaryDirectory() as workdir:
    begun = last = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "experiments.sngan", "--gin_file=configs/sngan_digits.gin",
         f"--workdir={workdir}", *(f"--gin_param={setting}" for setting in SETTINGS)],
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
  found = [measure() for _ in range(FLAGS.turns)]
  middle = {name: statistics.median(turn[name] for turn in found) for name in found[0]}
  print(f"first line after {middle['first line']:.1f} s; first step after "
        f"{middle['first step']:.1f} s and {middle['cpu']:.1f} CPU seconds; longest silence "
        f"{middle['silence']:.1f} s")


if __name__ == "__main__":
  app.run(main)
