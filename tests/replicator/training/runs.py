"""Trainings of few steps, and what they log."""

import os
import pathlib
import signal
from collections.abc import Callable

import replicator
from replicator.app import config
from tests.programs.logs import timed_rows
from tests.programs.two_networks import TwoNetworks

SMALL = ["train.global_batch_size = 8", "train.log_every = 1", "train.eval_every = 0",
         "train.checkpoint_every = 0", "train.check_first_step = False"]  # It has its own tests.
MIRRORED_2 = ["Replicator.strategy = 'mirrored'", "Replicator.logical_cpus = 2"]


def train(workdir: pathlib.Path | str, *bindings: str, step=TwoNetworks, inputs=None, evaluate=None,
          before_call=None):
  config.parse([], [*SMALL, *bindings])
  return replicator.train(step, inputs, evaluate, before_call, workdir=str(workdir))


def stopping_at(number: int) -> Callable[[object, int], None]:
  """A `before_call` that asks the run to stop."""
  def before_call(step: object, at: int) -> None:
    if at == number:
      os.kill(os.getpid(), signal.SIGTERM)
  return before_call


def column(workdir: pathlib.Path, name: str) -> dict[int, float]:
  """The values of one scalar, by step."""
  return {row["step"]: row[name] for row in timed_rows(workdir) if name in row}
