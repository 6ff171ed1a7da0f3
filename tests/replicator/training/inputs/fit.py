"""A tiny experiment whose input is a data set of global batches.

    python -m tests.replicator.training.inputs.fit --gin_param="train.steps = 6" --workdir=DIR
"""

from replicator import app, train, wrap_optimizer

import keras
import tensorflow as tf

BATCH = 8  # The data set has it, and `train.global_batch_size` must be it.


def pairs() -> tf.data.Dataset:
  """Shuffled pairs (x, x squared) as Keras takes them, in global batches without end."""
  x = tf.cast(tf.range(100), tf.float64) / 100
  pairs = tf.data.Dataset.from_tensor_slices((x, x ** 2)).shuffle(100, seed=3)
  return pairs.repeat().batch(BATCH, drop_remainder=True)


class Fit(tf.Module):
  """Fits a line."""

  def __init__(self):
    super().__init__()
    self.line = keras.Variable([0.5, 0.25], dtype="float64")
    self.optimizer = wrap_optimizer(keras.optimizers.SGD(0.1), [self.line])

  def loss(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.square(self.line[0] * x + self.line[1] - y))

  def __call__(self, batch: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
    return {"loss": self.optimizer.minimize(self.loss, *batch)}


if __name__ == "__main__":
  app.run(lambda workdir: train(Fit, pairs, workdir=workdir))
