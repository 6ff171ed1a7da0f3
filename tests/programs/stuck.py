"""The tiny experiment `fragile`, but worker 1 is stuck in its own code before step 5."""

import threading

from replicator import app, train
from replicator.strategies.cluster import tf_config
from tests.programs.fragile import Fragile, numbers

import tensorflow as tf

STEP = 5


def before_call(step: tf.Module, number: int) -> None:
  """Never returns in worker 1."""
  config = tf_config.read("multi_worker_mirrored")
  if number == STEP and config["task"]["index"] == 1:
    threading.Event().wait()


if __name__ == "__main__":
  app.run(lambda workdir: train(Fragile, numbers, workdir=workdir, before_call=before_call))
