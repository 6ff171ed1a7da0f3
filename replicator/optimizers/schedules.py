"""Learning rates that change over the updates of an optimizer."""

import gin
import keras
import tensorflow as tf

from replicator.errors import UsageError


@gin.configurable(module="replicator")
class LinearDecay(keras.optimizers.schedules.LearningRateSchedule):
  """A learning rate that rises linearly, stays constant, then falls linearly to zero.

  Args:
    learning_rate: the highest learning rate.
    updates: the number of updates of the optimizer after which the rate is zero.
    start: the number of updates after which the rate begins to fall.
    warmup: the number of updates over which the rate rises; 0 starts at the highest rate.

  Raises:
    UsageError: `warmup <= start < updates` does not hold.
  """

  def __init__(self, learning_rate: float, updates: int, start: int = 0, warmup: int = 0):
    if not warmup <= start < updates:
      raise UsageError(f"LinearDecay: warmup = {warmup}, start = {start} and updates = {updates} "
                       "must follow each other in this order")
    self.learning_rate = learning_rate
    self.updates = updates
    self.start = start
    self.warmup = warmup

  def __call__(self, step: tf.Tensor) -> tf.Tensor:
    done = tf.cast(step, keras.config.floatx())
    remaining = (self.updates - done) / (self.updates - self.start)
    rate = self.learning_rate * tf.clip_by_value(remaining, 0.0, 1.0)
    return rate * tf.minimum((done + 1) / self.warmup, 1.0) if self.warmup else rate

  def get_config(self) -> dict:
    return {"learning_rate": self.learning_rate, "updates": self.updates, "start": self.start,
            "warmup": self.warmup}
