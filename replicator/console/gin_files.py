"""Gin files by name: in the working directory, in its `configs/`, or in that of this project."""

import os
import pathlib

from replicator.errors import ENGINE, nearest

OURS = pathlib.Path(ENGINE).parent
"""The folder that holds `replicator`, `models`, `experiments` and `configs`: a clone, or the one
where packages are installed."""


def found(name: str) -> str:
  """The path of the gin file that `name` stands for, or `name` itself if there is none.

  `configs/sngan_digits.gin` and `sngan_digits.gin` are this project's file in every folder that has
  no such file of its own.
  """
  name = os.path.expanduser(name)
  places = [name, os.path.join("configs", name), str(OURS / "configs" / name)]
  if pathlib.PurePath(name).parts[:1] == ("configs",):
    places.append(str(OURS / name))
  return next(filter(os.path.isfile, places), name)


def named() -> list[str]:
  """The files in `configs/`, that of the working directory and this project's, by name."""
  return sorted({file.relative_to(folder).as_posix() for folder in (pathlib.Path(), OURS)
                 for file in (folder / "configs").rglob("*.gin")})


def named_like(name: str) -> str:
  """The end of the line on a missing file: `. Did you mean 'configs/sngan.gin'?`, or nothing."""
  beside = pathlib.Path(os.path.dirname(name) or ".").glob("*.gin")
  hint = nearest(name, [*map(str, beside), *named()])
  return f".{hint}" if hint else ""
