"""Finds gin files in the working directory, in its `configs/`, or in this project's `configs/`."""

import os
import pathlib

from replicator.errors import ENGINE, nearest

OURS = pathlib.Path(ENGINE).parent
"""The folder with `replicator`, `models`, `experiments` and `configs`: a clone, or the folder of
installed packages."""


def found(name: str) -> str:
  """Returns the path of the gin file `name`, or `name` itself if there is none.

  `configs/sngan_digits.gin` and `sngan_digits.gin` mean this project's file, in any folder without
  a file of that name.
  """
  name = os.path.expanduser(name)
  places = [name, os.path.join("configs", name), str(OURS / "configs" / name)]
  if pathlib.PurePath(name).parts[:1] == ("configs",):
    places.append(str(OURS / name))
  return next(filter(os.path.isfile, places), name)


def named() -> list[str]:
  """Lists the files in `configs/` of the working directory and of this project."""
  return sorted({file.relative_to(folder).as_posix() for folder in (pathlib.Path(), OURS)
                 for file in (folder / "configs").rglob("*.gin")})


def named_like(name: str) -> str:
  """Returns a hint for a missing file: `. Did you mean 'configs/sngan.gin'?`, or ''."""
  beside = pathlib.Path(os.path.dirname(name) or ".").glob("*.gin")
  hint = nearest(name, [*map(str, beside), *named()])
  return f".{hint}" if hint else ""
