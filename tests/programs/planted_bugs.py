"""A small step that trains the same under every strategy, unless a bug is planted in it.

    python -m tests.programs.planted_bugs --gin_param="train.steps = 10" \\
      --gin_param="Regression.bug = 'local_batch_norm'" --workdir=DIR
"""

import replicator
from replicator import app, random
from tests.programs.two_networks import WIDTH, Points

import gin
import keras
import numpy as np
import tensorflow as tf


@gin.configurable
class Regression(tf.Module):
  """Learns a function of noisy points by least squares.

  Args:
    bug: the bug that is planted; none if empty.
    norm: 'global' puts a `GlobalBatchNorm` in the network.
    accumulates: whether the step divides its batch into `microbatch.n` parts.
  """

  def __init__(self, bug: str = "", norm: str = "", accumulates: bool = True):
    super().__init__()
    self.bug = bug
    self.accumulates = accumulates
    layers = [keras.Input([WIDTH]), keras.layers.Dense(4)]
    if bug == "local_batch_norm":
      layers.append(keras.layers.BatchNormalization())
    if norm == "global":
      layers.append(replicator.GlobalBatchNorm())
    layers.append(keras.layers.Activation("tanh"))
    if bug == "dropout":
      layers.append(keras.layers.Dropout(0.5))
    if bug == "joined":
      layers.append(replicator.Dropout(0.5))
    if bug == "weights":
      start = np.random.default_rng().standard_normal()
      layers.append(keras.layers.Dense(4, bias_initializer=keras.initializers.Constant(start)))
    layers.append(keras.layers.Dense(1))
    self.network = keras.Sequential(layers)
    self.variables_learned = self.network.trainable_variables
    self.optimizer = replicator.wrap_optimizer(keras.optimizers.Adam(0.01), self.variables_learned)
    self.latest = tf.Variable(  # Every replica writes its own copy.
        tf.zeros([], keras.config.floatx()), trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

  def __call__(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    if self.accumulates:
      loss, gradients = replicator.microbatch(self.loss_and_gradients, batch)
    else:
      loss, gradients = self.loss_and_gradients(batch)
    if self.bug == "unaveraged_variable":
      loss += self.latest.read_value()
      self.latest.assign(tf.reduce_mean(batch["x"]))
    if self.bug == "branch":
      tf.cond(loss > 0, lambda: self.optimizer.apply(gradients), lambda: None)
    else:
      self.optimizer.apply(gradients, self.variables_learned)
    return {"loss": loss}

  def loss_and_gradients(self, batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """The loss `[]`, and its gradient by every variable; `microbatch` averages both."""
    x = batch["x"] + 0.1 * random.normal("noise", batch["x"].shape)
    if self.bug == "global_generator":
      x += 0.1 * keras.random.normal(x.shape)
    if self.bug == "numpy":
      x += 0.1 * np.random.normal()
    if self.bug == "unseeded":
      x += 0.1 * np.random.default_rng().standard_normal()
    with tf.GradientTape() as tape:
      if self.bug == "joined":
        outputs = self.network(tf.concat([x, -x], 0), training=True)
        errors = tf.square(tf.add_n(tf.split(outputs, 2)) - batch["y"])
      else:
        errors = tf.square(self.network(x, training=True) - batch["y"])
      loss = tf.reduce_sum(errors) if self.bug == "sum" else tf.reduce_mean(errors)
    gradients = tape.gradient(loss, self.variables_learned)
    if self.bug == "clipping":
      gradients, _ = tf.clip_by_global_norm(gradients, 0.1)
    return loss, gradients


def main(workdir: str) -> Regression:
  """Trains."""
  return replicator.train(Regression, Points(), workdir=workdir)


if __name__ == "__main__":
  app.run(main)
