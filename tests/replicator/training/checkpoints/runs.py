"""Trainings to stop and resume, steps that are saved by hand, and the values of both."""

import pathlib

from replicator import atomic
from replicator.step.variables import variables_of
from replicator.training.checkpoints import names, store
from replicator.training.checkpoints.retention import Checkpoints
from replicator.training.checkpoints.saver import Saver
from tests.replicator.training import runs

import numpy as np
import tensorflow as tf

CENTRAL_2 = ["Replicator.strategy = 'central_storage'", "Replicator.logical_cpus = 2"]


def train(workdir: pathlib.Path, *bindings: str, **options):
  return runs.train(workdir, "train.log_every = 5", "train.eval_every = 5",
                    "train.checkpoint_every = 5", *bindings, **options)


def save(folder: pathlib.Path, step, *numbers: int, scalars=None, **settings) -> Saver:
  """Saves the step under each number in turn, with a loop state that has the number."""
  checkpoints = Saver(folder, step, retention=Checkpoints(**settings))
  for number in numbers:
    checkpoints.save(number, {"seconds": float(number)}, scalars and scalars(number))
  checkpoints.wait()
  return checkpoints


def content(folder: pathlib.Path) -> dict[pathlib.Path, bytes]:
  """The files of a folder that are not hidden."""
  return {path: path.read_bytes() for path in folder.rglob("[!.]*") if path.is_file()}


# ---- Variables, by path -------------------------------------------------------------------------


def values(step) -> dict[str, np.ndarray]:
  held = {path: v.state if isinstance(v, tf.random.Generator) else v
          for path, v in variables_of(step).items()}
  return {path: tf.convert_to_tensor(v).numpy() for path, v in held.items()}


def assert_equal(step, expected: dict[str, np.ndarray]) -> None:
  """Every variable has the same bits."""
  found = values(step)
  assert found.keys() == expected.keys()
  for path, value in expected.items():
    np.testing.assert_array_equal(found[path], value, err_msg=path)


# ---- Weights and averages, by name --------------------------------------------------------------


def saved(workdir: pathlib.Path, step: int | None = None) -> dict[str, np.ndarray]:
  """Those of a checkpoint; where replicas have their own, the first one's."""
  folder = workdir / "checkpoints"
  number = step or store.steps_of(folder)[-1]
  facts = atomic.facts_of(folder / f"step-{number:08d}")
  values = store.read(folder, number)
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
