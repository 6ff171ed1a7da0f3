"""A tiny experiment that fails at one example.

    python -m tests.programs.fragile --gin_param="train.steps = 12" \
      --gin_param="train.global_batch_size = 4" --workdir=DIR
"""

from replicator import Callback, Evaluation, InputContext, app, random, train, wrap_optimizer

import gin
import keras
import numpy as np
import tensorflow as tf

BAD = 22.0


def numbers(context: InputContext) -> tf.data.Dataset:
  """Numbers 0, 1, 2, ... in the order of the examples of the global batches."""
  own = context.batch_size
  first = context.input_pipeline_id * own + tf.range(own, dtype=tf.int64)
  return tf.data.Dataset.range(10 ** 6).map(
      lambda step: {"x": tf.cast(step * context.global_batch_size + first, tf.float32)})


@gin.configurable
class Fragile(tf.Module):
  """Has a NaN loss at the example `BAD`, or only NaN gradients if `where` is not 'loss'."""

  def __init__(self, where: str = "loss", **kwargs):
    super().__init__()
    self.where = where
    self.weights = keras.Variable([1.0, 2.0])
    self.optimizer = wrap_optimizer(keras.optimizers.SGD(0.01), [self.weights], **kwargs)

  def __call__(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    is_bad = tf.reduce_any(batch["x"] == BAD)
    noise = random.normal("noise", [batch["x"].shape[0], 2])
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean(tf.square(self.weights.value - noise)) / 4.0
      if self.where == "loss":
        loss += tf.where(is_bad, np.nan, 0.0)
      else:  # A square root has an infinite slope at zero.
        loss += tf.sqrt(tf.where(is_bad, 0.0, 1.0) * tf.reduce_sum(self.weights.value ** 2)) / 4.0
      scaled = self.optimizer.scale_loss(loss)
    self.optimizer.apply(tape.gradient(scaled, [self.weights.value]), [self.weights])
    return {"loss": loss, "noise": tf.reduce_mean(noise), "x": tf.reduce_mean(batch["x"])}


@gin.configurable
class OwnSteps(Callback):
  """Decides on the chief alone when it is called, which other workers cannot know."""

  def begin(self, run) -> None:
    self.at = [run.step + 1]


@gin.configurable
class Halving(Callback):
  """Halves a weight at every log point."""

  def __init__(self, on_all_workers: bool = False):
    self.on_all_workers = on_all_workers

  def after_steps(self, run) -> None:
    run.module.weights.assign(run.module.weights / 2.0)


if __name__ == "__main__":
  app.run(lambda workdir: train(
      Fragile, numbers, lambda step: Evaluation({"constant": 1.0}), workdir=workdir))
