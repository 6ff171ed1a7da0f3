"""Reads the files of a workdir, complete or not, without TensorFlow, so that pages load fast."""

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Iterable
from typing import Any

from replicator.errors import UsageError
from replicator.training.workdir.places import folder_of

import numpy as np

_NOT_FINITE = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}

TIMES = ("seconds", "data_wait", "system/examples_per_second",
         "system/environment_steps_per_second", "system/memory_mib", "system/peak_gpu_memory_mib")
"""The numbers of a log point that depend on the machine; they differ between identical runs."""

_FIRST_GROUPS = ("eval", "loss", "")

EARLY = "stopped early"  # The status of a run whose patience ran out.


def as_json(value: float) -> float | str:
  """Returns a number, or a word if it is not finite, which JSON cannot express."""
  return value if math.isfinite(value) else json.dumps(value)


@dataclasses.dataclass(frozen=True)
class Run:
  """The files of a workdir; missing or unreadable files count as empty."""

  folder: pathlib.Path
  rows: list[dict[str, Any]]  # The readable lines of `metrics.jsonl`; NaN and infinity are floats.
  num_corrupt: int  # The number of its unreadable lines.
  facts: dict[str, Any]  # The content of `run.json`.
  config: str  # The text of `config.gin`.
  samples: list[pathlib.Path]  # The pictures, in step order.
  images: dict[str, list[pathlib.Path]]  # The images other than 'samples', by name.

  def series(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns `{name: (steps [n], values [n])}`, in the order of `in_groups`."""
    points: dict[str, list[tuple[int, float]]] = {}
    for row in self.rows:
      for name, value in row.items():
        if name not in ("step", "seconds") and isinstance(value, int | float):
          points.setdefault(name, []).append((row["step"], value))
    return {name: (at[0], at[1]) for name in in_groups(points)
            for at in [np.array(points[name], float).T]}

  def status(self) -> tuple[str, str]:
    """Returns how the run went: 'good', 'warn' or 'bad', and a short description."""
    if not self.rows:
      return "warn", "nothing logged"
    step, steps = self.rows[-1]["step"], self.facts.get("steps")
    ended = str(self.facts.get("ended") or "").partition(":")[0]  # Drops the reason.
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
  """Reads a workdir, or a copy of it for a URL; raises a UsageError if it does not exist."""
  folder = folder_of(workdir)
  if not folder.is_dir():
    raise UsageError(f"'{workdir}': no such folder; give the workdir of a run")
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
  """Returns the step of an image, `step-NNNNNNNN.png`; None for other files, the user's own."""
  number = image.stem.removeprefix("step-")
  return int(number) if number.isdecimal() else None


def read_facts(workdir: pathlib.Path) -> dict[str, Any]:
  """Reads `run.json`; returns an empty dict if the file is missing or unreadable."""
  return read_object(workdir / "run.json")


def read_object(path: pathlib.Path) -> dict[str, Any]:
  """Reads the object in a JSON file; returns an empty dict if it is missing or unreadable."""
  return object_in(_text(path))


def _text(path: pathlib.Path) -> str:
  try:
    return path.read_text(encoding="utf-8", errors="replace")
  except OSError:
    return ""


def object_in(text: str) -> dict[str, Any]:
  """Parses a JSON object; returns an empty dict if the text is something else or incomplete."""
  try:
    value = json.loads(text)
  except ValueError:
    return {}
  return value if isinstance(value, dict) else {}


def in_groups(names: Iterable[str]) -> list[str]:
  """Sorts metric names by prefix: `eval/`, `loss/`, no prefix, then the others.

  Otherwise, groups and the names in them keep the given order.
  """
  group_of = {name: name.partition("/")[0] if "/" in name else "" for name in names}
  groups = [*_FIRST_GROUPS, *group_of.values()]
  return sorted(group_of, key=lambda name: groups.index(group_of[name]))


def kind(name: str) -> str:
  """Returns where a metric comes from: 'evaluation' or 'training'."""
  return "evaluation" if name.startswith("eval/") else "training"
