"""A tiny experiment for parameter servers, which prints what their test needs to know.

    replicator launch --workers=2 --ps=2 -- python -m tests.programs.asynchronous \
      --gin_param="Replicator.strategy = 'parameter_server'" --gin_param="train.steps = 10" \
      --workdir=DIR
"""

import json
import os

from replicator import app, train
from replicator.step.variables import variables_of
from tests.programs.two_networks import Points, TwoNetworks

import tensorflow as tf


class Counted(TwoNetworks):
  """Counts its steps."""

  def __init__(self):
    super().__init__()
    self.runs = tf.Variable(0)

  def __call__(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    outputs = super().__call__(batch)
    self.runs.assign_add(1)
    return outputs


def asynchronous(workdir: str) -> None:
  """Trains two networks; prints this process's id, and the results."""
  print("process", os.getpid())
  networks = train(Counted, Points(), workdir=workdir)
  print("trained", json.dumps({
      "runs": int(networks.runs.numpy()),
      "devices": {v.device for v in variables_of(networks).values()}}, default=sorted))


if __name__ == "__main__":
  app.run(asynchronous)
