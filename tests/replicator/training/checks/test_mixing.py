"""What the doctor finds in a step that is not linear in its batch."""

import functools

import replicator
from replicator.training.checks import mixing
from tests.replicator.doctor.checks import examine
from tests.replicator.strategies.tracing.test_graphs import line_of

import keras
import numpy as np
import pytest
import tensorflow as tf

line = functools.partial(line_of, file=__file__)
MEAN, STATISTIC = "a quotient of sums", "a statistic of the batch"
OTHERS = "examples that are combined with each other"


def suspects(step) -> mixing.Suspects:
  """What the output `loss` of a step of 8 examples depends on."""
  x = tf.TensorSpec([8, 3], tf.float32)
  found = {}

  @tf.function(autograph=False)
  def traced(x, y):
    outputs = {"loss": step(x, y), "other": tf.reduce_mean(x) ** 2}
    found.update(mixing.suspects(tf.compat.v1.get_default_graph(), [x, y], outputs, 8))
  traced.get_concrete_function(x, x)
  assert STATISTIC in next(iter(found["other"].mixes)) and found[""].mixes
  return found["loss"]


def normalized(x):
  return x - tf.reduce_mean(x)  # Advantages.


def boolean(x, y):
  return tf.reduce_mean(tf.boolean_mask(x, y[:, 0] > 0))  # Boolean.


def masked(x, y):
  x._keras_mask = y[:, 0] > 0
  return keras.losses.MeanSquaredError()(y, x)  # Keras mask.


def weighted(x, y):
  loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
  return loss(y, x, sample_weight=y[:, 0])  # Weights.


def quotient(x, y):
  return tf.reduce_sum(x * y) / tf.reduce_sum(y)  # Quotient.


def features(x, y):
  return tf.reduce_sum((tf.reduce_mean(x, 0) - tf.reduce_mean(y, 0)) ** 2)  # Features.


def wide_features(x, y):  # As many features as examples.
  wide = tf.matmul(x, tf.ones([3, 8]))
  return tf.reduce_sum(tf.reduce_mean(wide, 0) ** 2)  # Wide.


def covariance(x, y):
  c = x - tf.reduce_mean(x, 0)  # Covariance.
  return tf.reduce_sum((tf.matmul(c, c, transpose_a=True) / x.shape[0]) ** 2)


def gram(x, y):
  gram = tf.matmul(x, y, transpose_a=True) / x.shape[0]
  return tf.reduce_sum(gram ** 2)  # Gram.


def contrast(x, y):
  logits = tf.matmul(x, y, transpose_b=True)  # Contrast.
  return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(8), logits))


def pairs(x, y):
  distances = tf.reduce_sum((x[:, tf.newaxis] - y[tf.newaxis]) ** 2, -1)  # Pairs.
  return tf.reduce_mean(tf.exp(-distances))


NOT_LINEAR = [
    (lambda x, y: tf.reduce_mean(normalized(x) * y), STATISTIC, "# Advantages."),
    (boolean, MEAN, "# Boolean."), (masked, MEAN, "# Keras mask."), (weighted, MEAN, "# Weights."),
    (lambda x, y: tf.reduce_mean(tf.RaggedTensor.from_tensor(x, tf.ones([8], tf.int32))), MEAN, ""),
    (quotient, MEAN, "# Quotient."), (features, STATISTIC, "# Features."),
    (wide_features, STATISTIC, "# Wide."), (covariance, STATISTIC, "# Covariance."),
    (gram, STATISTIC, "# Gram."), (contrast, OTHERS, "# Contrast."), (pairs, OTHERS, "# Pairs."),
    (lambda x, y: tf.reduce_max(x), STATISTIC, ""),
    (lambda x, y: tf.exp(tf.reduce_mean(x)), STATISTIC, ""),
    (lambda x, y: tf.reduce_mean(tf.roll(x, 1, 0) * y), OTHERS, "")]


@pytest.mark.parametrize(("step", "words", "place"), NOT_LINEAR)
def test_what_is_not_linear_in_the_batch_is_named_with_its_line(step, words, place):
  cause, places = next(iter(suspects(step).mixes.items()))
  assert cause.startswith(words)
  assert not place or places[0] == line(place).removeprefix(" at ")


NORM, DENSE, GLOBAL = layers = (
    keras.layers.LayerNormalization(), keras.layers.Dense(3), replicator.GlobalBatchNorm())
for layer in layers:
  layer.build([None, 3])


def of_parts(x, y):
  first, second = replicator.split(x, 2)
  return tf.reduce_mean(DENSE(first)) + tf.reduce_mean(tf.nn.softmax(DENSE(second)))


def of_several(x, y):
  first, second = tf.unstack(tf.reduce_mean(tf.exp(tf.stack([x, y])), [1, 2]))
  return first + 2.0 * second


def of_images(x, y):
  images = tf.reshape(tf.concat([x, y], 0), [16, 1, 3, 1])
  return tf.reduce_mean(tf.reshape(tf.transpose(images, [0, 3, 1, 2]) ** 2, [48])) / 2.0


@pytest.mark.parametrize("step", [
    lambda x, y: tf.reduce_mean(NORM(x) * DENSE(y)), of_parts, of_images,
    lambda x, y: 0.1 * keras.losses.MeanSquaredError()(y, x) + tf.reduce_mean(x),
    lambda x, y: replicator.mean(x, y > 0),
    lambda x, y: tf.reduce_mean(tf.stack([x, y]) ** 2), of_several,
    lambda x, y: replicator.all_mean(tf.reduce_mean(x)) ** 2,
    lambda x, y: tf.reduce_mean(tf.matmul(x, replicator.all_concat(y), transpose_b=True)),
    lambda x, y: tf.reduce_mean(x - replicator.all_mean({"m": tf.reduce_mean(x, 0)})["m"]),
    lambda x, y: tf.reduce_mean(GLOBAL(x, training=True)),
    lambda x, y: tf.reduce_mean(tf.reduce_max(x, 1) * tf.exp(y[:, 0])),
    lambda x, y: tf.reduce_mean(tf.linalg.matmul(x[:, tf.newaxis], y[:, :, tf.newaxis]))])
def test_what_is_linear_in_the_batch_is_not(step):
  assert suspects(step).mixes == {}


def test_sums_and_numbers_of_gradients_are_seen():
  def gradient(x, y):
    w = tf.ones([3])
    with tf.GradientTape() as tape:
      tape.watch(w)
      loss = tf.reduce_mean(tf.linalg.matvec(x, w))
    return tf.norm(tape.gradient(loss, w))

  assert suspects(gradient).of_gradients
  added = suspects(lambda x, y: tf.reduce_sum(tf.reduce_sum(x, 1)))
  assert len(added.sums) == 1 and not added.of_gradients
  assert suspects(lambda x, y: tf.reduce_mean(tf.reduce_sum(x, 1))).sums == []


# ---- What the doctor says -----------------------------------------------------------------------


class Points:
  size = 16
  batched = True

  def load(self, index):
    points = tf.constant(np.random.default_rng(0).normal(size=[16, 2]))
    return tf.gather(points, index)


def cause(loss_fn, log=lambda self, x, loss, gradients: {}) -> str:
  class Step(tf.Module):
    def __init__(self):
      super().__init__()
      self.w = keras.Variable([1.0, 2.0], dtype="float64")
      self.optimizer = replicator.wrap_optimizer(keras.optimizers.SGD(0.1), [self.w])
      self.seen = replicator.replicated.variable(0, tf.int64, "seen")

    def __call__(self, x):
      loss, gradients = self.optimizer.loss_and_gradients(lambda: loss_fn(x, x * self.w.value))
      logged = log(self, x, loss, gradients)
      self.optimizer.apply([logged.pop("gradient", gradients[0])])
      return {"loss": loss, **logged}

  found = examine(main=lambda workdir: replicator.train(Step, Points(), workdir=workdir), steps=1)
  found._differs_again = None
  return next(found.results([])).notes[1].removeprefix("likely cause: ")


def clipped(self, x, loss, gradients):
  (gradient,), norm = tf.clip_by_global_norm(gradients, 0.1)
  return {"gradient": gradient, "norm": norm}


def counted(self, x, loss, gradients):
  replicator.replicated.update([self.seen], lambda copies: copies[0].assign_add(x.shape[0]))
  return {}


SQUARE = lambda x, y: tf.reduce_mean(y ** 2)


@pytest.mark.parametrize(("arguments", "words"), [
    ([lambda x, y: tf.reduce_sum(y * y) / tf.reduce_sum(y)], "a quotient of sums over "
     "examples, as in a mean over valid positions: tests/"),
    pytest.param(
        [lambda x, y: keras.losses.MeanSquaredError(reduction="sum")(x, y)],
        "a loss summed instead of averaged: the loss 'loss' is exactly 1/2 of the reference's (it "
        "adds up examples: tests/", marks=pytest.mark.slow),
    pytest.param(
        [SQUARE, lambda self, x, loss, gradients: {"norm": tf.linalg.global_norm(gradients)}],
        "a number computed from the gradients of one replica", marks=pytest.mark.slow),
    ([SQUARE, clipped], "clipping before aggregation: tf.clip_by_global_norm at tests/"),
    ([SQUARE, counted], "a count of one replica's examples: the variable 'seen' is exactly 1/2"),
    pytest.param([SQUARE, lambda self, x, loss, gradients: {"perplexity": tf.exp(loss)}],
                 "a statistic of the batch: tests/", marks=pytest.mark.slow)])
def test_the_doctor_names_the_cause(arguments, words, restored):
  assert cause(*arguments).startswith(words)
