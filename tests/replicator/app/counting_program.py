"""A small program, whose runs `replicator.load` loads."""

import replicator
from replicator import app

import gin
import keras
import tensorflow as tf


@gin.configurable(denylist=["x"])
def scaled(x, factor=1.0) -> tf.Tensor:
  """Scales a number, as the configuration says when it is called."""
  return factor * x


@gin.configurable
class CountingStep(tf.Module):
  """Counts its calls; each replica also counts for itself."""

  def __init__(self, size=2, function=scaled, device=0):
    super().__init__()
    self.device = device
    with replicator.logical_device(device):
      self.weight = tf.Variable(2.0)
    self.count = tf.Variable(tf.zeros([size], keras.config.floatx()), trainable=False,
                             aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    self.own = tf.Variable(0.0, trainable=False, aggregation=tf.VariableAggregation.MEAN,
                           synchronization=tf.VariableSynchronization.ON_READ)
    self.function = function

  def __call__(self):
    self.count.assign_add(tf.ones_like(self.count))
    self.own.assign_add(1.0 + 2.0 * tf.cast(replicator.replica_id(), tf.float32))
    return {"count": self.count[0], "scaled": self.function(self.count[0])}

  def apply(self, x):
    """Calls the function on the device of the step."""
    with replicator.logical_device(self.device):
      return self.function(x)


@gin.configurable
def counting(workdir: str, needs: str = "") -> None:
  """Trains the step, if a file is there."""
  if needs:
    open(needs).close()
  replicator.train(CountingStep, workdir=workdir)


if __name__ == "__main__":
  app.run(counting)
