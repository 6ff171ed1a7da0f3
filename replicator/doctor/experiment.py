"""The experiment that the doctor checks: its `main`, its configuration, and new processes for it.

Importing it does not load TensorFlow, because the doctor chooses the devices first.
"""

import importlib.util
import os
import pathlib
import pickle
import re
import runpy
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from replicator.errors import UsageError
from replicator.processes import Child

import gin

LIMIT = 3600.0
"""The most seconds that a process of an experiment may take, so that a deadlock ends."""

_ERROR = re.compile(r"(?:\[\w+ \d+\] )?error: (.*)")  # Also from a worker.


def load(experiment: str) -> Callable[[str], None]:
  """Returns the `main` that a module or file passes to `app.run`.

  Raises a UsageError if there is none.
  """
  from replicator.app.experiment import main_of  # It loads TensorFlow.
  is_file = experiment.endswith(".py")
  try:
    found = os.path.isfile(experiment) if is_file else importlib.util.find_spec(experiment)
  except (ImportError, ValueError):
    found = False
  if not found:
    raise UsageError(f"--experiment={experiment}: no such {'file' if is_file else 'module'}; use "
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


def bound(name: str, default: Any) -> Any:
  """Returns the value that the configuration binds to a gin parameter, or `default`."""
  try:
    return gin.query_parameter(name)
  except ValueError:
    return default


def configure(files: Sequence[str], params: Sequence[str], steps: int, *bindings: str) -> None:
  """Configures an experiment with extra `bindings`, and for `steps` steps if it sets no number."""
  from replicator.app import config  # It loads TensorFlow.
  config.parse(files, params)
  total = [] if bound("train.steps", None) else [f"train.steps = {steps}"]
  config.parse(files, params, [*total, *bindings])


def recorded_by(words: Sequence[str], workers: int = 1) -> Any:
  """Returns a recording made in a new process, or cluster of `workers`, with the doctor's `words`.

  Raises a UsageError if it fails, with the first error that it printed, or if it does not end
  within an hour.
  """
  with tempfile.TemporaryDirectory(prefix="replicator-") as folder:
    path, output = pathlib.Path(folder, "recording"), pathlib.Path(folder, "output")
    command = [sys.executable, "-m", "replicator", "doctor", *words, f"--record={path}"]
    if workers > 1:
      command = [sys.executable, "-m", "replicator", "launch", f"--workers={workers}", "--",
                 *command]
    deadline = time.monotonic() + LIMIT
    with output.open("w") as printed:
      child = Child(command, {}, stdout=printed)
    try:
      child.end(deadline)
    finally:
      child.send_signal(signal.SIGKILL)  # After an interrupt, or if it left other processes.
    is_late, status = time.monotonic() >= deadline, child.process.returncode
    if not is_late and status == 0:
      return pickle.loads(path.read_bytes())
    lines = output.read_text(errors="replace").splitlines()
  last = f"; its last line was '{lines[-1].strip()}'" if lines else ", and printed nothing"
  if is_late:
    typed = shlex.join(["replicator", "doctor", *words])
    raise UsageError(f"{typed} did not end within {LIMIT / 60:g} minutes{last}; if it only needs "
                     "more time, use fewer --steps or a smaller train.global_batch_size")
  how = f"ended with status {status}" if status > 0 else f"was ended by signal {-status}"
  errors = [found[1] for line in lines if (found := _ERROR.fullmatch(line))]
  raise UsageError(errors[0] if errors else f"the process {how}{last}")


def hand_over(path: str, recording: Any) -> None:
  """Writes the chief's recording for the process that called `recorded_by`."""
  if recording.is_chief:
    pathlib.Path(path).write_bytes(pickle.dumps(recording))
