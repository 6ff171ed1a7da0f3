"""Trials: ordinary runs, named after their bindings, and their records in a sweep.

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
_NAME_LENGTH = 100  # File systems allow 255; other file names are built from this one.

WAITING, RUNNING, DONE = "waiting", "running", "done"
FAILED, STOPPED, PRUNED = "failed", "stopped", "pruned"
ENDED = (DONE, PRUNED, FAILED)  # A resumed sweep reruns only failed ones, on request.


@dataclasses.dataclass
class Record:
  """A trial of a sweep: the contents of `trial.json`."""

  id: str  # A readable name, also for its folder; the same for equal values in every process.
  bindings: space.Point  # `{name: value}`, where it differs from other trials.
  status: str = WAITING  # `waiting`, `running`, `done`, `failed`, `stopped` or `pruned`.
  exit_code: int | None = None  # The exit status of its last process.
  seconds: float = 0.0  # The total time of its processes.
  message: str = ""  # Why it failed: the last line of its output.
  command: str = ""  # The shell command that starts and resumes it.
  order: int = 0  # Its place in the order in which the sweep's trials started.
  generation: int = 0  # In a population: its generation, starting at 1.
  parent: str = ""  # In a population: the member whose checkpoint it copied last, and when.

  @classmethod
  def make(cls, file: SweepFile, point: space.Point, sweep_folder: pathlib.Path,
           trial_id: str = "") -> "Record":
    """Makes a new trial at a point of a sweep's space.

    Its ID is `trial_id`; by default, it is made from what the trial runs.
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
    """Returns this new trial with the order and the time of its earlier attempts."""
    return dataclasses.replace(self, order=earlier.order, seconds=earlier.seconds)

  def words(self) -> list[str]:
    """Returns the words of its command, with this Python interpreter."""
    return [sys.executable, *shlex.split(self.command)[1:]]

  def is_ended(self, retry_failed: bool) -> bool:
    """Returns whether the trial will not run again."""
    return self.status in ENDED and not (self.status == FAILED and retry_failed)

  def write(self, folder: pathlib.Path) -> None:
    """Replaces `trial.json`; a crash leaves the old file or the new one."""
    text = json.dumps(dataclasses.asdict(self), indent=2, default=repr)
    write_whole(folder / RECORD, f"{text}\n")


def read_record(folder: pathlib.Path) -> Record | None:
  """Reads the record in a trial's folder; returns None if it is missing or unreadable."""
  try:
    return Record(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
  except (OSError, ValueError, TypeError):
    return None


def folder_of(sweep_folder: pathlib.Path, trial_id: str) -> pathlib.Path:
  """Returns the folder of a trial, which is its workdir."""
  return sweep_folder / "trials" / trial_id


def _id(file: SweepFile, bindings: space.Point) -> str:
  """Joins readable text and a digest of all that defines the run: sweeps may share a folder."""
  names = short_names(list(bindings))
  text = "_".join(f"{names[name]}={_readable(value)}" for name, value in bindings.items())
  contents = map(file.content, space.gin_files_of(bindings.get(space.GIN_FILE, [])))
  return f"{text[:_NAME_LENGTH]}_{digest(file, bindings, *contents)}"


def digest(file: SweepFile, *others: Any) -> str:
  """Returns an eight-character hash of the settings common to a sweep's trials, and of `others`."""
  facts = [file.experiment, list(map(file.content, file.gin_files)), list(file.params), *others]
  return hashlib.sha256(space.text_of(facts).encode()).hexdigest()[:8]


def short_names(names: Sequence[str]) -> dict[str, str]:
  """Shortens names: `{"adam.learning_rate": "learning_rate"}`; keeps the full name if ambiguous."""
  last = [name.rpartition(".")[2] for name in names]
  return {name: short if last.count(short) == 1 else name.replace("/", ".")
          for name, short in zip(names, last, strict=True)}


def label(bindings: space.Point) -> str:
  """Formats bindings: `learning_rate 0.0002, latent_dim 16`; `all` if there are none."""
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
