"""Losses of libraries are means over a replica's examples; tf.distribute's way is refused."""

import functools

import replicator
from replicator import Replicator, UsageError
from replicator.strategies import one_replica
from tests.replicator.strategies.tracing.test_graphs import line_of

import keras
import numpy as np
import pytest
import tensorflow as tf

X = np.random.default_rng(0).normal(size=[8, 3])
Y = np.random.default_rng(1).integers(0, 2, size=[8, 3])


class Quartic(keras.losses.Loss):
  """A loss of a user's own."""

  def call(self, y_true, y_pred):
    return tf.reduce_sum((y_true - y_pred) ** 4, -1)


@functools.cache  # A step makes no variables.
def compiled_model() -> keras.Model:
  model = keras.Sequential([keras.Input([3]), keras.layers.ActivityRegularization(l2=0.1)])
  model.compile(loss="mse")
  return model


def of_model(y, x):
  model = compiled_model()
  return model.compute_loss(y=y, y_pred=model(x))


ENTROPY = np.mean(np.log1p(np.exp(X)) - X * Y)
SQUARES = np.mean((X - Y) ** 2)
LOSSES = {  # With their values for one replica.
    "object": (lambda y, x: keras.losses.BinaryCrossentropy(from_logits=True)(y, x), ENTROPY),
    "alias": (lambda y, x: tf.keras.losses.MeanSquaredError()(y, x), SQUARES),
    "subclass": (lambda y, x: Quartic()(y, x), np.mean(np.sum((X - Y) ** 4, -1))),
    "model": (of_model, SQUARES + 0.1 * np.sum(X ** 2) / 8),
    "mixed": (lambda y, x: keras.losses.MeanSquaredError()(y, x) + tf.reduce_mean(x ** 2),
              SQUARES + np.mean(X ** 2)),
    "weights": (lambda y, x: keras.losses.MeanSquaredError()(y, x, sample_weight=y[:, 0] + 1),
                np.mean((X - Y) ** 2 * (Y[:, :1] + 1))),
    "average": (lambda y, x: tf.nn.compute_average_loss(tf.reduce_sum(x ** 2, -1)),
                np.sum(X ** 2) / 8),
    "regularization": (lambda y, x: tf.nn.scale_regularization_loss(tf.reduce_mean(x ** 2)),
                       np.mean(X ** 2))}


def loss_and_gradient(on: Replicator, loss_fn) -> tuple[float, np.ndarray]:
  """The mean over replicas, as the log has it, and the gradient that an optimizer would apply."""
  compiled_model()

  def step(batch):
    with tf.GradientTape() as tape:
      factor = tf.ones([], tf.float64)
      tape.watch(factor)
      loss = loss_fn(tf.cast(batch["y"], tf.float64), batch["x"] * factor)
    return replicator.all_mean([loss, tape.gradient(loss, factor)])

  return tuple(map(float, on.run(step, {"x": X, "y": Y})[0]))


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_of_a_library_is_the_mean_over_the_batch(name, float64):
  loss_fn, expected = LOSSES[name]
  if name == "model":
    model = compiled_model()
    model(X)
    if model.losses[0] > 0.11 * np.sum(X ** 2) / 8:
      pytest.skip("this Keras adds up ActivityRegularization over the batch, as 3.12 does")
  alone = loss_and_gradient(Replicator("one_device"), loss_fn)
  assert alone[0] == pytest.approx(expected, rel=1e-6)  # Keras clips logarithms.
  for on in (Replicator("mirrored", logical_cpus=2), Replicator("mirrored", logical_cpus=4),
             Replicator("central_storage", logical_cpus=2)):
    np.testing.assert_allclose(loss_and_gradient(on, loss_fn), alone, rtol=1e-12)


def test_also_line_by_line(float64, two, run_eagerly):
  run_eagerly()
  loss_fn, expected = LOSSES["object"]
  assert loss_and_gradient(two, loss_fn)[0] == pytest.approx(expected, rel=1e-6)


def test_this_package_and_tensorflow_know_the_number_of_replicas(two):
  with two.scope():
    norm = keras.layers.BatchNormalization(synchronized=True)
    norm.build([None, 3])
  number, outputs = zip(*two.run(
      lambda x: (replicator.num_replicas(), norm(x, training=True)), X.astype(np.float32)),
                        strict=True)
  assert number == (2, 2)
  expected = (X - X.mean(0)) / np.sqrt(X.var(0) + norm.epsilon)
  np.testing.assert_allclose(np.concatenate(outputs), expected, rtol=1e-4, atol=1e-5)
  assert two.strategy.num_replicas_in_sync == 2


def by_replicas(x):
  return tf.reduce_mean(x) / tf.distribute.get_strategy().num_replicas_in_sync  # Strategy.


def by_context(x):
  return tf.reduce_mean(x) / tf.distribute.get_replica_context().num_replicas_in_sync  # Context.


def all_reduced(x):
  return tf.distribute.get_replica_context().all_reduce("sum", x)  # Reduced.


def by_global_batch(x):
  return tf.nn.compute_average_loss(x[:, 0], global_batch_size=8)  # Average.


@pytest.mark.parametrize(("step", "line", "message"), [
    (by_replicas, "# Strategy.", "num_replicas_in_sync: .* remove the division"),
    (by_context, "# Context.", "num_replicas_in_sync: .* remove the division"),
    (all_reduced, "# Reduced.", "all_reduce: .* averages gradients"),
    (by_global_batch, "# Average.", "4 examples of a replica by 8; leave out")])
def test_what_is_for_added_gradients_is_refused_with_its_line(step, line, message, two):
  with pytest.raises(UsageError, match=message) as error:
    two.run(step, X)
  assert line_of(line, __file__).removeprefix(" at ") in str(error.value)
  Replicator("one_device").run(step, X)


def test_what_all_replicas_have_a_part_of_is_not_read_apart(two):
  with two.scope():
    metric = keras.metrics.Mean(name="of_step")
  two.run(lambda x: metric.update_state(x), X)
  with one_replica.apart():
    with pytest.raises(UsageError, match=r"the variable 'of_step/\w+' has a part on each replica"):
      metric.result()
    own = keras.metrics.Mean()
    own.update_state(X)
  for each in (metric, own):
    np.testing.assert_allclose(each.result(), X.mean(), rtol=1e-6)


def test_an_average_over_the_own_examples_stays(two):
  for size in (None, 4):
    outputs = two.run(lambda x, size=size: tf.nn.compute_average_loss(x[:, 0], None, size), X)
    assert np.mean(outputs) == pytest.approx(X[:, 0].mean())
