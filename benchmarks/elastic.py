"""An elastic run whose machines are killed, go away and come back on a schedule.

  python -m benchmarks.elastic [--events=20] [--seed=0]

Four addresses of this machine are its hosts, behind a stand-in for ssh, which fails for absent
hosts. A small SN-GAN on the digits trains in float64 on one to four of them. A few steps after the
last event comes the next: a process is killed, or its machine goes away with it, or an absent
machine comes back. The losses are compared with an uninterrupted run on one process.
"""

import pathlib
import random
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from benchmarks.record import Table
from replicator.training.workdir.reader import TIMES, read

import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("events", 20, "How many kills, departures and returns.", lower_bound=1)
flags.DEFINE_integer("seed", 0, "The seed of the schedule.")

HOSTS = [f"127.0.0.{i}" for i in range(1, 5)]
STEPS_BETWEEN = 5  # Steps logged before the next event.
SETTINGS = [
    "train.global_batch_size = 24", "train.log_every = 1", "train.eval_every = 0",
    "train.checkpoint_every = 2", "train.precision = 'float64'", "Guard.signals = False",
    "adam.learning_rate = 2e-5",  # With 4e-4 rounding grows to 4e-6 in 800 steps, on any strategy.
    "SNGANGenerator.width_multiplier = 0.125", "SNGANDiscriminator.width_multiplier = 0.125",
    "Encoder.width_multiplier = 0.125"]


def command(workdir: pathlib.Path, strategy: str) -> list[str]:
  """Returns the training command."""
  steps = 60 * FLAGS.events  # More than are trained before the last event.
  settings = [*SETTINGS, f"train.steps = {steps}", f"Replicator.strategy = '{strategy}'"]
  return [sys.executable, "-m", "experiments.sngan", "--gin_file=configs/sngan_digits.gin",
          f"--workdir={workdir}", *(f"--gin_param={each}" for each in settings)]


class Machines:
  """The hosts of the run; `folder` has the stand-in for ssh."""

  def __init__(self, folder: pathlib.Path):
    self._folder = folder
    self.away: list[str] = []
    self.ssh = folder / "ssh"
    # A host is away while a file with its name exists. Another file has the ID of its process.
    self.ssh.write_text(f'#!/bin/sh\ncd {folder}\n[ -e $1 ] && exit 255\n'
                        '[ "$2" = true ] || echo $$ > $1.pid\ncd - > /dev/null\nshift\n'
                        'exec sh -c "$*"\n')
    self.ssh.chmod(0o755)

  def kill(self, host: str, goes_away: bool) -> None:
    """Kills the process of a host; optionally, the host goes away."""
    if goes_away:
      self.away.append(host)
      (self._folder / host).touch()
    pid = (self._folder / f"{host}.pid").read_text().strip()
    subprocess.run(["pkill", "-KILL", "-P", pid], check=False)

  def bring_back(self, host: str) -> None:
    """Makes a host answer again."""
    self.away.remove(host)
    (self._folder / host).unlink()


def next_event(machines: Machines, chosen: random.Random) -> str:
  """Triggers one event; returns its name."""
  there = [host for host in HOSTS if host not in machines.away]
  kinds = ["kill"] + ["leave"] * (len(there) > 1) + ["join"] * (len(there) < len(HOSTS))
  kind = chosen.choice(kinds)
  if kind == "join":
    machines.bring_back(chosen.choice(machines.away))
  else:
    machines.kill(chosen.choice(there), goes_away=kind == "leave")
  return kind


class Event(NamedTuple):
  """A change, as in the table of events; `again` counts the repeated steps."""

  kind: str
  steps: int
  machines: int
  seconds: float
  again: int


def train_elastically(folder: pathlib.Path) -> tuple[list[Event], float]:
  """Trains under the schedule; returns the events, and the total seconds."""
  machines, chosen, workdir = Machines(folder), random.Random(FLAGS.seed), folder / "elastic"
  words = [sys.executable, "-m", "replicator", "launch", f"--hosts={','.join(HOSTS)}",
           f"--workers=1:{len(HOSTS)}", f"--ssh={machines.ssh}", f"--max_restarts={FLAGS.events}",
           "--", *command(workdir, "multi_worker_mirrored")]
  workdir.mkdir()
  table = Table("each event, and the seconds until the next step",
                {"at step": "d", "machines": "d", "seconds": ".1f", "steps again": "d"}, "event")
  begun, events = time.monotonic(), list[Event]()
  with (folder / "output").open("w") as output, subprocess.Popen(
      words, stdout=output, stderr=subprocess.STDOUT) as process:
    while process.poll() is None:
      time.sleep(0.05)
      if len(events) == FLAGS.events or len(read(workdir).rows) < STEPS_BETWEEN:
        continue
      kind, at, size = next_event(machines, chosen), time.monotonic(), len(read(workdir).rows)
      starts = output_lines(folder, "resumed at step")
      most = size
      while output_lines(folder, "resumed at step") == starts and process.poll() is None:
        most = max(most, len(read(workdir).rows))
        time.sleep(0.05)
      resumed = len(read(workdir).rows)
      while len(read(workdir).rows) <= resumed and process.poll() is None:
        time.sleep(0.05)
      events.append(Event(kind, size, len(HOSTS) - len(machines.away), time.monotonic() - at,
                          most - resumed))
      table.add(*events[-1])
      while len(read(workdir).rows) < min(resumed + STEPS_BETWEEN, size + 100) and (
          process.poll() is None):
        time.sleep(0.05)
  if process.returncode:
    raise SystemExit((folder / "output").read_text())
  return events, time.monotonic() - begun


def output_lines(folder: pathlib.Path, text: str) -> int:
  """Returns how many lines of the run's output contain `text`."""
  return (folder / "output").read_text().count(text)


def main(argv: list[str]) -> None:
  del argv
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    events, seconds = train_elastically(folder)
    begun = time.monotonic()
    subprocess.run(command(folder / "unbroken", "one_device"), check=True, capture_output=True)
    unbroken = time.monotonic() - begun
    found, wanted = read(folder / "elastic").rows, read(folder / "unbroken").rows
    assert [row["step"] for row in found] == [row["step"] for row in wanted]
    difference = max(abs(row[key] - other[key]) / max(abs(other[key]), 1e-12)
                     for row, other in zip(found, wanted, strict=True)
                     for key in other.keys() - {"step", *TIMES})
    times = [event.seconds for event in events]
    table = Table("seconds until the next step", {"times": "d"} | dict.fromkeys(
        ("least", "10 %", "median", "90 %", "most"), ".1f"), "event")
    for kind in ("kill", "leave", "join", "all"):
      if of_kind := [event.seconds for event in events if kind in (event.kind, "all")]:
        table.add(kind, len(of_kind), *np.percentile(of_kind, [0, 10, 50, 90, 100]))
    again = sum(event.again for event in events)
    lost = again * float(np.median(np.diff([row["seconds"] for row in found])))
    table = Table("both runs; the lost seconds and their share do not count the restarts",
                  {"steps": "d", "seconds": ".0f", "steps again": "d", "lost": ".1f",
                   "share": ".1%", "relative difference": ".1e"})
    table.add("with events", len(found), seconds, again, lost, lost / (seconds - sum(times)),
              difference)
    table.add("unbroken, one process", len(wanted), unbroken, *[None] * 4)


if __name__ == "__main__":
  app.run(main)
