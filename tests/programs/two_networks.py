"""A tiny experiment: two networks, an example source, random streams, pictures.

    python -m tests.programs.two_networks --gin_param="train.steps = 10" --workdir=DIR
"""

import os
import signal
from collections.abc import Callable

import replicator
from replicator import app, random

import gin
import keras
import numpy as np
import tensorflow as tf

WIDTH = 3  # Length of an example, and of a code.


class Points:
  """50 examples `{"x": [WIDTH], "y": [1]}`."""

  size = 50

  def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
    phase = tf.cast(index, keras.config.floatx()) / 10
    x = tf.sin(phase * tf.range(1, WIDTH + 1, dtype=phase.dtype))
    return {"x": x, "y": tf.reduce_sum(tf.square(x), keepdims=True)}


def network(outputs: int) -> keras.Sequential:
  return keras.Sequential([
      keras.Input([WIDTH]), keras.layers.Dense(4, use_bias=False), replicator.GlobalBatchNorm(),
      keras.layers.Activation("tanh"), keras.layers.Dense(outputs)])


@gin.configurable
class TwoNetworks(tf.Module):
  """A critic learns to distinguish examples from a generator's, which learns to mislead it.

  Args:
    optimizer: makes the generator's Keras optimizer.
    critic_width: how many scores the critic gives each example.
  """

  def __init__(self, optimizer: Callable[[], keras.optimizers.Optimizer] = keras.optimizers.Adam,
               critic_width: int = 1):
    super().__init__()
    self.generator, self.critic = network(WIDTH), network(critic_width)
    self.optimizers = {
        "generator": replicator.wrap_optimizer(
            optimizer(), self.generator.trainable_variables, ema_decay=0.9),
        "critic": replicator.wrap_optimizer(
            keras.optimizers.SGD(0.1, momentum=0.5), self.critic.trainable_variables,
            clip_norm=1.0)}

  def __call__(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    examples = batch["x"]
    z = random.normal("z", examples.shape)
    with tf.GradientTape(persistent=True) as tape:
      fakes = self.generator(z, training=True)
      scores = self.critic(tf.concat([examples, fakes], 0), training=True)
      real_scores, fake_scores = tf.split(scores, 2)
      losses = {"critic": tf.reduce_mean(tf.nn.softplus(-real_scores))
                + tf.reduce_mean(tf.nn.softplus(fake_scores)),
                "generator": tf.reduce_mean(tf.nn.softplus(-fake_scores))}
    for name, optimizer in self.optimizers.items():
      variables = optimizer.variables_updated
      optimizer.apply(tape.gradient(losses[name], variables), variables)
    return losses


def evaluate(networks: TwoNetworks) -> replicator.Evaluation:
  with networks.optimizers["generator"].averaged_weights():
    samples = networks.generator(random.normal("samples", [8, WIDTH]), training=False)
  gray = np.clip(128 + 64 * samples.numpy(), 0, 255).astype(np.uint8)
  return replicator.Evaluation({"mean": np.mean(samples)}, {"samples": np.stack([gray] * 3, -1)},
                               "mean of 8 samples")


@gin.configurable
def two_networks(workdir: str, stop_at: int = 0) -> TwoNetworks:
  """Trains, and sends itself SIGTERM at the evaluation of step `stop_at`."""
  def evaluate_or_stop(networks):
    updates = networks.optimizers["critic"].keras_optimizer.iterations
    if stop_at and int(updates.numpy()) == stop_at:
      os.kill(os.getpid(), signal.SIGTERM)
    return evaluate(networks)
  return replicator.train(TwoNetworks, Points(), evaluate_or_stop, workdir=workdir)


if __name__ == "__main__":
  app.run(two_networks)
