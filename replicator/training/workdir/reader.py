"""Reads the files of a workdir, complete or not, without TensorFlow, so that pages appear fast."""

import dataclasses
import json
import math
import os
import pathlib
from typing import Any

from replicator.errors import UsageError
from replicator.training.workdir.places import folder_of

import numpy as np

_NOT_FINITE = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}

TIMES = ("seconds", "data_wait")
"""The numbers of a log point that a clock measured, so that the same run has others each time."""

EARLY = "stopped early"  # How a run ended whose patience was over.


def as_json(value: float) -> float | str:
  """A number as it is written to JSON: a word if it is not finite, which JSON cannot express."""
  return value if math.isfinite(value) else json.dumps(value)


@dataclasses.dataclass(frozen=True)
class Run:
  """The files of a workdir; a file that is missing or unreadable counts as empty."""

  folder: pathlib.Path
  rows: list[dict[str, Any]]  # The readable lines of `metrics.jsonl`; NaN and infinity are floats.
  num_corrupt: int  # The number of its other lines.
  facts: dict[str, Any]  # The content of `run.json`.
  config: str  # The text of `config.gin`.
  samples: list[pathlib.Path]  # The pictures, in the order of their steps.
  images: dict[str, list[pathlib.Path]]  # Those that have another name than 'samples', by name.

  def series(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """`{name: (steps [n], values [n])}`, evaluations first."""
    points: dict[str, list[tuple[int, float]]] = {}
    for row in self.rows:
      for name, value in row.items():
        if name not in ("step", "seconds") and isinstance(value, int | float):
          points.setdefault(name, []).append((row["step"], value))
    names = sorted(points, key=lambda name: kind(name) != "evaluation")
    return {name: (at[0], at[1]) for name in names for at in [np.array(points[name], float).T]}

  def status(self) -> tuple[str, str]:
    """How the run went: 'good', 'warn' or 'bad', and a few words."""
    if not self.rows:
      return "warn", "nothing logged"
    step, steps = self.rows[-1]["step"], self.facts.get("steps")
    ended = str(self.facts.get("ended") or "").partition(":")[0]  # A word, and why.
    lost = [name for name, (_, values) in self.series().items() if not np.isfinite(values[-1])]
    if lost:
      return "bad", f"not finite at step {step}: {', '.join(lost)}"
    if ended == "failed":
      return "bad", f"failed after step {step}"
    if isinstance(steps, int) and step < steps:
      look = "good" if ended == EARLY else "warn"
      return look, " at ".join(filter(None, [ended, f"step {step} of {steps}"]))
    return "good", f"finished at step {step}"


def read(workdir: str | os.PathLike) -> Run:
  """Reads a workdir, or the copy of that of a URL; UsageError: there is no such folder."""
  folder = folder_of(workdir)
  if not folder.is_dir():
    raise UsageError(f"'{workdir}': no such folder; write the workdir of a run")
  lines = [object_in(line) for line in _text(folder / "metrics.jsonl").splitlines()]
  rows = [{name: _NOT_FINITE.get(value, value) if isinstance(value, str) else value
           for name, value in row.items()} for row in lines if isinstance(row.get("step"), int)]
  return Run(folder, rows, len(lines) - len(rows), read_facts(folder),
             _text(folder / "config.gin"), sorted((folder / "samples").glob("step-*.png")),
             _images(folder / "samples"))


def _images(folder: pathlib.Path) -> dict[str, list[pathlib.Path]]:
  found: dict[str, list[pathlib.Path]] = {}
  for path in sorted(folder.rglob("step-*.png")):
    name = path.parent.relative_to(folder).as_posix()
    if name != ".":
      found.setdefault(name, []).append(path)
  return found


def step_of(image: pathlib.Path) -> int | None:
  """The step of an image, `step-NNNNNNNN.png`; None for another file, which is the user's."""
  number = image.stem.removeprefix("step-")
  return int(number) if number.isdecimal() else None


def read_facts(workdir: pathlib.Path) -> dict[str, Any]:
  """The content of `run.json`; empty if the file is missing or unreadable."""
  return read_object(workdir / "run.json")


def read_object(path: pathlib.Path) -> dict[str, Any]:
  """The object in a JSON file; empty if the file is missing or unreadable."""
  return object_in(_text(path))


def _text(path: pathlib.Path) -> str:
  try:
    return path.read_text(encoding="utf-8", errors="replace")
  except OSError:
    return ""


def object_in(text: str) -> dict[str, Any]:
  """The object that a JSON text holds; empty if it holds another value, or is torn."""
  try:
    value = json.loads(text)
  except ValueError:
    return {}
  return value if isinstance(value, dict) else {}


def kind(name: str) -> str:
  """Where a metric comes from: 'evaluation' or 'training'."""
  return "evaluation" if name.startswith("eval/") else "training"
