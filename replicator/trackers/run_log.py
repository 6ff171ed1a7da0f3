"""What trackers read of a workdir: which run it is, and what it has logged since they looked."""

import ast
import dataclasses
import json
import pathlib
import secrets
import threading
from collections.abc import Iterator
from typing import Any

from replicator import atomic
from replicator.configuration.differences import written_values
from replicator.sweeps.trials import RECORD
from replicator.trackers.tracker import TrackedRun
from replicator.workdir import reader

FILE = "trackers.json"


class Ids:
  """The id of a run in each tracker, kept in the workdir; several threads may ask."""

  def __init__(self, workdir: pathlib.Path):
    self._path = workdir / FILE
    self._lock = threading.Lock()

  def of(self, tracker: str) -> str:
    """The id in a tracker, which is made if there is none yet."""
    with self._lock:
      return self._read().get(tracker) or self._write(tracker)

  def renew(self, tracker: str) -> str:
    """Makes another id, for another record of the same run, and returns it."""
    with self._lock:
      return self._write(tracker)

  def _read(self) -> dict[str, str]:
    try:
      return dict(json.loads(self._path.read_text()))
    except (OSError, ValueError, TypeError):
      return {}

  def _write(self, tracker: str) -> str:
    new = secrets.token_hex(8)
    atomic.write_whole(self._path, json.dumps({**self._read(), tracker: new}, indent=2) + "\n")
    return new


def describe(workdir: pathlib.Path, run_id: str) -> TrackedRun:
  """The run in a workdir that has a `config.gin`."""
  folder = workdir.resolve()
  config = written_values((folder / "config.gin").read_text(encoding="utf-8"))
  return TrackedRun(
      run_id, folder.name, reader.read_facts(folder).get("experiment", ""),
      folder.parent.parent.name if (folder / RECORD).exists() else "", folder,
      {name: _literal(value) for name, value in config.items()})


def _literal(text: str) -> Any:
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):  # It holds a reference.
    return text


@dataclasses.dataclass(frozen=True)
class Line:
  """What a run logged at one step: a line of `metrics.jsonl`, a picture, or both."""

  step: int
  scalars: dict[str, float]
  picture: pathlib.Path | None


class Log:
  """Reads what a run logs, step by step, each part of `metrics.jsonl` only once."""

  def __init__(self, workdir: pathlib.Path, after: int):
    self._workdir = workdir
    self._last = after
    self._offset = 0  # Where the lines of later steps begin: nobody changes those before.

  def up_to(self, last: float) -> Iterator[Line]:
    """Yields what was logged since, up to the step `last`."""
    rows = self._rows(last)
    pictures = {int(number): path for path in (self._workdir / "samples").glob("step-*.png")
                if (number := path.stem.removeprefix("step-")).isdecimal()
                and self._last < int(number) <= last}
    for step in sorted({*rows, *pictures}):
      yield Line(step, rows.get(step, {}), pictures.get(step))
      self._last = step

  def _rows(self, last: float) -> dict[int, dict[str, float]]:
    rows: dict[int, dict[str, float]] = {}
    path = self._workdir / "metrics.jsonl"
    if not path.exists():
      return rows
    with path.open("rb") as file:
      file.seek(self._offset)
      for line in file:
        if not line.endswith(b"\n"):  # It is being written.
          break
        row = json.loads(line)
        step = row.pop("step")
        if step > last:
          break
        self._offset += len(line)
        if step > self._last:
          rows[step] = {name: float(value) for name, value in row.items()}
    return rows
