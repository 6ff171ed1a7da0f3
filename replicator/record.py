"""What a run leaves behind in its workdir: metrics, pictures, configuration, provenance."""

import datetime
import json
import math
import pathlib
import platform
import shlex
import subprocess
import sys
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from replicator import app


class Record:
  """Writes the files of a workdir; one process of a run has one.

  Args:
    workdir: created if missing.
    facts: what `run.json` says besides command, versions and commit.
    first_step: where the run resumes; later lines of `metrics.jsonl` are taken back, so that
      the file reads as that of an uninterrupted run.
  """

  def __init__(self, workdir: pathlib.Path, facts: dict, first_step: int = 0):
    self.workdir = workdir
    (workdir / "samples").mkdir(parents=True, exist_ok=True)
    self._metrics = workdir / "metrics.jsonl"
    self._take_back(first_step)
    self._facts = {**self._earlier_facts(first_step), **_provenance(), **facts,
                   "resumed_at_step": first_step or None}
    self._write_facts()
    self._events = tf.summary.create_file_writer(str(workdir))

  def metrics(self, step: int, seconds: float, values: dict[str, float]) -> None:
    """Appends one line to `metrics.jsonl` and the same to TensorBoard."""
    line = json.dumps({"step": step, "seconds": round(seconds, 3), **values})
    with self._metrics.open("a") as file:
      file.write(line + "\n")
    with self._events.as_default(step):
      for name, value in values.items():
        tf.summary.scalar(name, value)
    self._events.flush()

  def picture(self, step: int, pixels: np.ndarray) -> None:
    """Writes `samples/step-NNNNNNNN.png` from uint8 `[h, w, 3]`, and the same to TensorBoard."""
    from PIL import Image
    Image.fromarray(pixels).save(self.workdir / "samples" / f"step-{step:08d}.png")
    with self._events.as_default(step):
      tf.summary.image("samples", pixels[np.newaxis])

  def note(self, name: str, fact: str) -> bool:
    """Adds a fact to `run.json`; returns whether it was news."""
    if self._facts.get(name) == fact:
      return False
    self._facts[name] = fact
    self._write_facts()
    return True

  def config(self) -> None:
    """Writes `config.gin`: every value that was used, so it is complete after the first step."""
    (self.workdir / "config.gin").write_text(gin.operative_config_str())

  def _take_back(self, first_step: int) -> None:
    if not self._metrics.exists():
      return
    kept = [line for line in self._metrics.read_text().splitlines()
            if first_step > 0 and _step_of(line) <= first_step]
    self._metrics.write_text("".join(line + "\n" for line in kept))

  def _earlier_facts(self, first_step: int) -> dict:
    if not first_step:
      return {}
    try:
      return json.loads((self.workdir / "run.json").read_text())
    except (OSError, json.JSONDecodeError):  # Torn by a crash.
      return {}

  def _write_facts(self) -> None:
    (self.workdir / "run.json").write_text(json.dumps(self._facts, indent=2) + "\n")


def _step_of(line: str) -> float:
  """The step of a line of metrics; infinity for a line torn by a crash."""
  try:
    return json.loads(line)["step"]
  except (json.JSONDecodeError, KeyError, TypeError):
    return math.inf


def _provenance() -> dict[str, Any]:
  import keras
  return {
      "experiment": app.experiment(),
      "command": shlex.join([*app.program(), *sys.argv[1:]]),
      "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
      "git_commit": _git_commit(),
      "versions": {"python": platform.python_version(), "tensorflow": tf.__version__,
                   "keras": keras.__version__, "numpy": np.__version__},
      "machine": {"processor": platform.processor() or platform.machine(),
                  "devices": [d.name for d in tf.config.list_logical_devices()]},
  }


def _git_commit() -> str | None:
  """The commit of the code, with `+` when it was changed since; None outside a repository."""
  def git(*arguments):
    return subprocess.run(["git", "-C", str(pathlib.Path(__file__).parent), *arguments],
                          capture_output=True, text=True, check=True).stdout.strip()
  try:
    return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
  except (OSError, subprocess.CalledProcessError):
    return None
