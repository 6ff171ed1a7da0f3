"""Moves a run's files from after a step to a separate workdir, so that the run can go back."""

import datetime
import pathlib
import re
import shutil

from replicator import atomic
from replicator.training.workdir import reader

FOLDER = "set_aside"  # In the workdir of the run.
_LATER = {"failure": "failures/step-*", "image": "samples/**/step-*.png",
          "checkpoint": "checkpoints/step-*"}  # One file or folder per step.


def set_aside(workdir: pathlib.Path, step: int) -> tuple[str, str]:
  """Sets aside a run's files from after `step`; returns the folder's name and a message.

  Both are empty if there are no such files. The folder is a workdir: it gets copies of the run's
  files, while later checkpoints, images and failures are moved there. The run's log keeps its
  later lines.
  """
  found = {kind: sorted(path for path in workdir.glob(pattern) if _step_of(path) > step)
           for kind, pattern in _LATER.items()}
  counts = {"log line": sum(row["step"] > step for row in reader.read(workdir).rows),
            **{kind: len(paths) for kind, paths in found.items()}}
  if not any(counts.values()):
    return "", ""
  now = datetime.datetime.now(datetime.timezone.utc)
  while (workdir / (name := f"{FOLDER}/after-{step:08d}-{now:%Y%m%d-%H%M%S}")).exists():
    now += datetime.timedelta(seconds=1)
  folder = workdir / name
  folder.mkdir(parents=True)
  for path in workdir.iterdir():
    if path.is_file() and not path.name.startswith("."):
      shutil.copy2(path, folder)
  # Moves checkpoints last, newest first, so that an interruption loses nothing.
  for path in (path for paths in found.values() for path in reversed(paths)):
    (folder / path.relative_to(workdir)).parent.mkdir(parents=True, exist_ok=True)
    path.rename(folder / path.relative_to(workdir))
  atomic.to_disk(workdir / "checkpoints")
  what = ", ".join(f"{count} {kind}{'s' * (count != 1)}"
                   for kind, count in reversed(counts.items()) if count)
  return name, (f"everything after step {step} ({what}) is set aside in {folder}, a separate "
                "workdir")


def _step_of(path: pathlib.Path) -> int:
  found = re.match(r"step-(\d+)", path.name)
  return int(found[1]) if found else -1
