"""A tiny experiment whose processes are not alike: each draws other numbers, and they share rows.

    python -m tests.programs.unalike --gin_param="train.steps = 2" --workdir=DIR
"""

from replicator import InputContext, app, train
from tests.programs.fragile import Fragile

import numpy as np
import tensorflow as tf


class Drawn(Fragile):
  """Draws numbers without a seed."""

  def __init__(self):
    super().__init__()
    self.numbers = np.random.default_rng().random(5).tolist()


def rows(context: InputContext) -> tf.data.Dataset:
  """Numbers, the same in every process."""
  dataset = tf.data.Dataset.range(10 ** 6).map(lambda x: {"x": tf.cast(x, tf.float32)})
  return dataset.batch(context.batch_size, drop_remainder=True)


if __name__ == "__main__":
  app.run(lambda workdir: train(Drawn, rows, workdir=workdir))
