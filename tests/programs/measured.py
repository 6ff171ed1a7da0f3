"""A tiny experiment whose step has a Keras metric, which an evaluation or a callback reads.

    python -m tests.programs.measured --gin_param="train.steps = 2" --workdir=DIR
"""

from replicator import Callback, Evaluation, app, train
from tests.programs.fragile import Fragile, numbers

import gin
import keras
import tensorflow as tf


class Measured(Fragile):
  """Has a metric, whose variables have a part on each replica."""

  def __init__(self):
    super().__init__()
    self.metric = keras.metrics.Mean()

  def mean(self) -> float:
    """The mean of 1, 2 and 6."""
    self.metric.reset_state()
    self.metric.update_state(tf.constant([1.0, 2.0, 6.0]))
    return float(self.metric.result())


@gin.configurable
class Evaluate:
  """Evaluates with the metric of the step, or with its own."""

  def __init__(self, on_all_workers: bool = False, owns: bool = False):
    self.on_all_workers, self._owns = on_all_workers, owns

  def __call__(self, step: Measured) -> Evaluation:
    if self._owns:
      step = Measured()
    return Evaluation({"mean": step.mean()})


@gin.configurable
class Reading(Callback):
  """Reads the metric of the step."""

  every = 1

  def after_steps(self, run) -> None:
    run.module.mean()


if __name__ == "__main__":
  app.run(lambda workdir: train(Measured, numbers, Evaluate(), workdir=workdir))
