"""Clusters of tiny commands in place of a training.

The commands wait for each other by files, so that no test depends on the speed of the machine.
"""

import pathlib
import subprocess
import sys

from replicator.tools import launch
from tests.programs.processes import ROOT, SECONDS

# What a command may use: `me` is its name, such as "worker0". `work` never returns. `wait_for`
# waits until another process has called `touch`. The alarm ends what a failed test leaves behind.
PRELUDE = """
import json, os, pathlib, signal, sys, time
config = json.loads(os.environ["TF_CONFIG"])
me = config["task"]["type"] + str(config["task"]["index"])
signal.alarm(600)
def work():
  while True: time.sleep(0.1)  # A signal that comes just before a sleep does not end it.
def wait_for(path):
  while not pathlib.Path(path).exists(): time.sleep(0.01)
def touch(path):
  pathlib.Path(path).touch()
"""
# As the training loop does: at the first SIGTERM or SIGINT, save and end with 42.
SAVES = """
def save(number, frame):
  print("saved", number)
  sys.exit(42)
signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGINT, save)
"""


def start(options: str | list[str], code: str) -> subprocess.Popen:
  words = options.split() if isinstance(options, str) else options
  command = [sys.executable, "-m", "replicator", "launch", *words, "--",
             sys.executable, "-c", PRELUDE + code]
  return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True)


def run(options: str | list[str], code: str, *ready: str) -> tuple[int, list[str], str]:
  """Status, lines of stdout, stderr; once the lines `ready` came, the cluster gets a SIGTERM."""
  process = start(options, code)
  if ready:
    read_until(process, {*ready})
    process.terminate()
  out, err = process.communicate(timeout=SECONDS)
  return process.returncode, out.splitlines(), err


def run_here(code: str, workers: int, **options) -> int:
  """The status of a cluster whose launcher is this process."""
  return launch.launch([sys.executable, "-c", PRELUDE + code], workers, **options)


def read_until(process: subprocess.Popen, lines: set[str]) -> None:
  """Reads the launcher's output until all of `lines` came, in any order."""
  assert process.stdout is not None
  while lines:
    line = process.stdout.readline()
    assert line, f"ended before {lines}"
    lines = lines - {line.rstrip("\n")}


def counts_starts(folder: pathlib.Path) -> str:
  """Code that counts the starts of this process in `start`, and leaves a file for each."""
  return f"""
folder = pathlib.Path({str(folder)!r})
start = len(list(folder.glob(me + "-*"))) + 1
(folder / f"{{me}}-{{start}}").write_text(str(config["cluster"]))
"""
