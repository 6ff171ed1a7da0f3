"""Trainings that meet a number that is not finite, and what they leave behind."""

import pathlib

import replicator
from replicator.app import config
from replicator.training.checkpoints import store
from tests.programs.fragile import Fragile, numbers
from tests.programs.logs import rows

import numpy as np

MIRRORED_2 = ("Replicator.strategy = 'mirrored'", "Replicator.logical_cpus = 2")
BATCH = 4  # The bad example is in step 6, of the second of two replicas.

SETTINGS = [f"train.global_batch_size = {BATCH}", "train.steps = 12", "train.log_every = 1",
            "train.eval_every = 0", "train.checkpoint_every = 4", "train.check_first_step = False"]


def train(workdir: pathlib.Path, *bindings: str, step=Fragile, inputs=numbers):
  config.parse([], [*SETTINGS, *bindings])
  return replicator.train(step, inputs, workdir=str(workdir))


def column(workdir: pathlib.Path, name: str) -> list[float]:
  return [row[name] for row in rows(workdir)]


def saved_steps(workdir: pathlib.Path) -> list[int]:
  return store.steps_of(workdir / "checkpoints")


ROLL_BACK = "Guard.action = 'roll_back'"
MAY_COLLAPSE = {"mode collapse": ("sample_variance", "data_variance")}


def history(**values: list[float]) -> dict[str, np.ndarray]:
  return {name.replace("__", "/"): np.array(series) for name, series in values.items()}
