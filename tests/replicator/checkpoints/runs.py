"""Trainings to stop and resume, what they leave behind, and a step that is saved by hand."""

import pathlib

import numpy as np
import tensorflow as tf

import replicator
from replicator.app import config
from replicator.checkpoints.checkpoint import Checkpoints
from replicator.step.variables import variables_of
from tests.programs.two_networks import TwoNetworks

SMALL = ["train.global_batch_size = 8", "train.log_every = 5", "train.eval_every = 5",
         "train.checkpoint_every = 5"]
MIRRORED_2 = ["Replicator.strategy = 'mirrored'", "Replicator.logical_cpus = 2"]
CENTRAL_2 = ["Replicator.strategy = 'central_storage'", "Replicator.logical_cpus = 2"]


def train(workdir: pathlib.Path, *bindings: str, step=TwoNetworks, inputs=None, evaluate=None,
          before_call=None):
  config.parse([], [*SMALL, *bindings])
  return replicator.train(step, inputs, evaluate, before_call, workdir=str(workdir))


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


def save(folder: pathlib.Path, step, *numbers: int, scalars=None, **settings) -> Checkpoints:
  """Saves the step under each number in turn, with a loop state that has the number."""
  checkpoints = Checkpoints(folder, step, **settings)
  for number in numbers:
    checkpoints.save(number, {"seconds": float(number)}, scalars and scalars(number))
  checkpoints.wait()
  return checkpoints
