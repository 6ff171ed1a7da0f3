"""Steps as people write them train the same on 1, 2 and 4 replicas and in micro-batches."""

import replicator
from replicator.doctor.verdict import AGREES
from tests.programs.capabilities import eagerly
from tests.replicator.doctor.checks import examine, largest

import keras
import numpy as np
import pytest
import tensorflow as tf

VOCABULARY, LONGEST = 11, 6


class Sentences:
  """Tokens from 1 on, padded with zeros to one length."""

  size, batched = 24, True

  def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
    draws = np.random.default_rng(0)
    tokens = draws.integers(1, VOCABULARY, [self.size, LONGEST + 1])
    lengths = draws.integers(1, LONGEST + 2, [self.size, 1])
    tokens = tf.constant(np.where(np.arange(LONGEST + 1) < lengths, tokens, 0), tf.int32)
    return {"tokens": tf.gather(tokens, index)}


class Recurrent(tf.Module):
  """Predicts each token by a GRU, which skips the padding; the loss is a mean over tokens."""

  def __init__(self):
    super().__init__()
    self.network = keras.Sequential([
        keras.Input([LONGEST], dtype="int32"),
        keras.layers.Embedding(VOCABULARY, 4, mask_zero=True),
        keras.layers.GRU(5, return_sequences=True), keras.layers.Dense(VOCABULARY)])
    self.optimizer = replicator.wrap_optimizer(
        keras.optimizers.AdamW(0.01), self.network.trainable_variables, clip_norm=0.5)

  def losses(self, tokens: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    targets, logits = tokens[:, 1:], self.network(tokens[:, :-1], training=True)
    errors = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
    is_right = tf.argmax(logits, -1, tf.int32) == targets
    return replicator.mean(errors, targets > 0), replicator.mean(is_right, targets > 0)

  def __call__(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    loss, accuracy = self.optimizer.minimize(self.losses, batch["tokens"])
    return {"loss": loss, "accuracy": accuracy}


class Attending(Recurrent):
  """The same by attention, over the earlier tokens that are no padding, with dropout."""

  def __init__(self):
    super().__init__()
    tokens = keras.Input([LONGEST], dtype="int32")
    x = keras.layers.Embedding(VOCABULARY, 4, mask_zero=True)(tokens)
    x = keras.layers.LayerNormalization()(
        x + keras.layers.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True))
    x = replicator.Dropout(0.2)(x)
    self.network = keras.Model(tokens, keras.layers.Dense(VOCABULARY)(x))
    self.optimizer = replicator.wrap_optimizer(
        keras.optimizers.Adam(0.01), self.network.trainable_variables)


def classifier(width: int) -> keras.Sequential:
  return keras.Sequential([keras.Input([8]), keras.layers.Dense(width, "tanh"),
                           keras.layers.Dense(3)])


class Vectors:
  """Vectors with classes."""

  size, batched = 24, True

  def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
    x = tf.constant(np.random.default_rng(1).normal(size=[self.size, 8]), keras.config.floatx())
    return {"x": tf.gather(x, index), "label": tf.cast(index % 3, tf.int32)}


class Distillation(tf.Module):
  """A student learns the softened outputs of a frozen teacher (Hinton et al. 2015)."""

  def __init__(self, trains_teacher: bool = False):
    super().__init__()
    self.teacher, self.student = classifier(7), classifier(3)
    self.teacher.trainable = trains_teacher
    make = lambda: keras.optimizers.Adam(0.01)
    self.optimizers = replicator.wrap_optimizers(
        make, student=self.student, teacher=self.teacher if trains_teacher else None)

  def loss_of_student(self, x: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    logits, warm = self.student(x, training=True), 2.0
    soft = tf.nn.softmax(self.teacher(x, training=False) / warm)
    divergence = keras.losses.KLDivergence()(soft, tf.nn.softmax(logits / warm))
    return loss_of_labels(labels, logits) + warm ** 2 * divergence, divergence

  def __call__(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    losses = {}
    if "teacher" in self.optimizers:
      losses["teacher"] = self.optimizers["teacher"].minimize(
          lambda x, y: loss_of_labels(y, self.teacher(x, training=True)), batch["x"],
          batch["label"])
    loss, divergence = self.optimizers["student"].minimize(
        self.loss_of_student, batch["x"], batch["label"])
    return {**losses, "student": loss, "divergence": divergence}


def loss_of_labels(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
  return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, logits)


@pytest.mark.slow
@pytest.mark.parametrize("step, inputs", [
    (Recurrent, Sentences), (Attending, Sentences), (Distillation, Vectors),
    (lambda: Distillation(trains_teacher=True), Vectors)],
    ids=["GRU", "attention", "distillation", "distillation with its teacher"])
def test_a_typical_step_trains_the_same_however_it_is_divided(step, inputs):
  main = lambda workdir: replicator.train(step, inputs(), workdir=workdir)
  with eagerly():  # To compile it takes longer.
    rows = examine(main=main, steps=3).results([])
    for check in ("2 replicas", "4 replicas", "2 micro-batches"):
      row = next(rows)
      assert (row.check, row.verdict) == (check, AGREES) and largest(row) < 1e-9, row
