"""The weights of a checkpoint and of a step, by name, and a run that starts from another."""

import pathlib

import numpy as np

from replicator import Replicator, atomic
from replicator.checkpoints import checkpoint, names
from replicator.checkpoints.start_from import StartFrom
from replicator.step.variables import variables_of
from tests.replicator.checkpoints import runs


def saved(workdir: pathlib.Path, step: int | None = None) -> dict[str, np.ndarray]:
  """The weights and averages of a checkpoint, by name; those of the first replica."""
  folder = workdir / "checkpoints"
  number = step or checkpoint.steps_of(folder)[-1]
  facts = atomic.facts_of(folder / f"step-{number:08d}")
  values = checkpoint.read(folder, number)
  return {name: values[path][0] if path in facts["by_replica"] else values[path]
          for path, name in facts["names"].items()}


def held(step) -> dict[str, np.ndarray]:
  """Those of a step."""
  variables = variables_of(step)
  return {name: variables[path].numpy() for path, name in names.names_of(step).items()}


def equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> set[str]:
  """The names with the same bits in both."""
  return {name for name in one if name in other and one[name].tobytes() == other[name].tobytes()}


def within(values: dict[str, np.ndarray], *prefixes: str) -> set[str]:
  return {name for name in values if name.startswith(prefixes)}


def begin(source: pathlib.Path, networks, workdir: pathlib.Path = pathlib.Path("none"), /,
          runner: Replicator | None = None, **settings):
  return StartFrom(str(source), **settings).begin(networks, runner or Replicator(), workdir)


def save(step, folder: pathlib.Path) -> pathlib.Path:
  """A run that saved a step as it is."""
  runs.save(folder / "checkpoints", step, 1)
  return folder
