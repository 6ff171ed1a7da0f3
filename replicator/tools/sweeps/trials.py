"""Trials: ordinary runs, named after their bindings, and what a sweep records about them.

A trial's folder is its workdir. The sweep adds `trial.json` and `output.log`.
"""

import dataclasses
import hashlib
import json
import pathlib
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from replicator.atomic import write_whole
from replicator.tools.sweeps import space
from replicator.tools.sweeps.sweep_file import SweepFile

RECORD, LOG = "trial.json", "output.log"
_NAME_LENGTH = 100  # A file system allows 255; other file names add to this one.

WAITING, RUNNING, DONE = "waiting", "running", "done"
FAILED, STOPPED, PRUNED = "failed", "stopped", "pruned"
ENDED = (DONE, PRUNED, FAILED)  # A resumed sweep runs only failed ones again, on request.


@dataclasses.dataclass
class Record:
  """One run of a sweep: the contents of `trial.json`."""

  id: str  # A readable name, also of its folder; the same for equal values in every process.
  bindings: space.Point  # `{name: value}`, by which it differs from the other trials.
  status: str = WAITING  # `waiting`, `running`, `done`, `failed`, `stopped` or `pruned`.
  exit_code: int | None = None  # The exit status of its last process.
  seconds: float = 0.0  # The time that its processes took together.
  message: str = ""  # The reason of a failure: the last line of its output.
  command: str = ""  # Its command, as typed in a shell, which starts it and resumes it.
  order: int = 0  # Its place in the order in which the sweep's trials began.
  generation: int = 0  # In a population: which one it is in, from 1 on.
  parent: str = ""  # In a population: the member whose checkpoint it copied last, and when.

  @classmethod
  def make(cls, file: SweepFile, point: space.Point, sweep_folder: pathlib.Path,
           trial_id: str = "") -> "Record":
    """Makes the trial at a point of a sweep's space; it has not begun.

    Its id is made from what it runs, unless it is the `trial_id`.
    """
    bindings = {name: point[name] for name in sorted(point)}
    flags = [f"--gin_file={path}" for path in
             (*file.gin_files, *space.gin_files_of(bindings.get(space.GIN_FILE, [])))]
    flags += [f"--gin_param={binding}" for binding in file.params]
    flags += [f"--gin_param={name} = {space.gin_text(value)}" for name, value in bindings.items()
              if name != space.GIN_FILE]
    program = [file.experiment] if file.experiment.endswith(".py") else ["-m", file.experiment]
    trial_id = trial_id or _id(file, bindings)
    return cls(trial_id, bindings, command=shlex.join(
        ["python", *program, *flags, f"--workdir={folder_of(sweep_folder, trial_id)}"]))

  def after(self, earlier: "Record") -> "Record":
    """The trial, which has not begun, with the place and the time of its earlier attempts."""
    return dataclasses.replace(self, order=earlier.order, seconds=earlier.seconds)

  def words(self) -> list[str]:
    """The words of its command, for this Python."""
    return [sys.executable, *shlex.split(self.command)[1:]]

  def is_ended(self, retry_failed: bool) -> bool:
    """Whether the trial does not run any more."""
    return self.status in ENDED and not (self.status == FAILED and retry_failed)

  def write(self, folder: pathlib.Path) -> None:
    """Replaces `trial.json`; a crash leaves the old file or the new one."""
    text = json.dumps(dataclasses.asdict(self), indent=2, default=repr)
    write_whole(folder / RECORD, f"{text}\n")


def read_record(folder: pathlib.Path) -> Record | None:
  """Reads the record in a trial's folder; None if it is missing or cannot be read."""
  try:
    return Record(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
  except (OSError, ValueError, TypeError):
    return None


def folder_of(sweep_folder: pathlib.Path, trial_id: str) -> pathlib.Path:
  """The folder of a trial, which is its workdir."""
  return sweep_folder / "trials" / trial_id


def _id(file: SweepFile, bindings: space.Point) -> str:
  """A readable text and a digest of all that makes the run: several sweeps may share a folder."""
  names = short_names(list(bindings))
  text = "_".join(f"{names[name]}={_readable(value)}" for name, value in bindings.items())
  contents = map(file.content, space.gin_files_of(bindings.get(space.GIN_FILE, [])))
  return f"{text[:_NAME_LENGTH]}_{digest(file, bindings, *contents)}"


def digest(file: SweepFile, *others: Any) -> str:
  """Eight letters that depend on what all trials of a sweep share, and on `others`."""
  facts = [file.experiment, list(map(file.content, file.gin_files)), list(file.params), *others]
  return hashlib.sha256(space.text_of(facts).encode()).hexdigest()[:8]


def short_names(names: Sequence[str]) -> dict[str, str]:
  """`{"LinearDecay.learning_rate": "learning_rate"}`; the full name where two would be equal."""
  last = [name.rpartition(".")[2] for name in names]
  return {name: short if last.count(short) == 1 else name.replace("/", ".")
          for name, short in zip(names, last, strict=True)}


def label(bindings: space.Point) -> str:
  """`learning_rate 0.0002, latent_dim 16`; `all` without bindings."""
  short = short_names(list(bindings))
  return ", ".join(f"{short[name]} {space.gin_text(value)}"
                   for name, value in bindings.items()) or "all"


def _readable(value: Any) -> str:
  if isinstance(value, float):
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)
  text = value if isinstance(value, str) else space.text_of(value)
  if text.endswith(".gin"):
    text = pathlib.PurePath(text).stem
  return re.sub(r"[^A-Za-z0-9.+-]+", "-", text).strip("-")
