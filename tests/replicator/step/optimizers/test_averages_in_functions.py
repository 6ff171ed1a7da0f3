"""Averaged weights as compiled functions see them, be they compiled before or inside.

A network multiplies by a kernel, whose average is another one, so each result has a closed form.
"""

import contextlib
import threading
from collections.abc import Callable

import replicator
from replicator.step import context
from replicator.step.replicated import copies_of
from replicator.strategies.distributed_evaluation import EvaluationShards, deal, sharded
from tests.programs.refusals import refusal

import keras
import numpy as np
import pytest
import tensorflow as tf

RNG = np.random.default_rng(0)
KERNEL, AVERAGE = RNG.normal(size=[2, 3, 1])
X = RNG.normal(size=[8, 3])


class Decorated(keras.layers.Layer):
  """A layer whose `call` is compiled."""

  def __init__(self):
    super().__init__()
    self.dense = keras.layers.Dense(1, use_bias=False)
    self.dense.build([None, 3])

  @tf.function
  def call(self, x):
    return self.dense(x)


class Network(tf.Module):
  """A network that is called in many ways; each returns `x kernel`."""

  def __init__(self):
    super().__init__()
    self.net = keras.Sequential([keras.Input([3]), Decorated()])
    self.optimizer = replicator.wrap_optimizer(
        keras.optimizers.SGD(0.5), self.net.trainable_variables, ema_decay=0.75)
    self.net.weights[0].assign(KERNEL)
    self.optimizer.averages[0].assign(AVERAGE)

  @tf.function
  def function(self, x):
    return self.net(x)

  @tf.function
  def branching(self, x):
    if tf.reduce_all(x < 1e9):  # AutoGraph makes a branch of it, and a loop of the next line.
      for _ in tf.range(2):
        x = x + 0.0
      return self.function(x)
    return tf.zeros_like(x[:, :1])

  @tf.function(jit_compile=True)
  def xla(self, x):
    return self.net(x)

  @replicator.any_batch_size
  def any_size(self, x):
    return self.net(x)

  def layer(self, x):
    return self.net(x)

  def predict(self, x):
    return self.net.predict(x, verbose=0)

  def data_set(self, x):
    return next(iter(tf.data.Dataset.from_tensors(x).map(self.net)))


WAYS = ["function", "branching", "xla", "any_size", "layer"]


def built(on: replicator.Replicator) -> Network:
  with on.scope():
    return Network()


def weights_of(network: Network) -> list[bytes]:
  return [copy.numpy().tobytes() for copy in copies_of(network.net.weights[0].value)]


@pytest.mark.parametrize("before", [True, False], ids=["before", "inside"])
@pytest.mark.parametrize("way, replicas", [
    *((way, n) for way in WAYS for n in (1, 2)), ("predict", 1), ("data_set", 2)])
def test_an_evaluation_sees_the_averages_inside_and_the_weights_again_after(
    float64, way, replicas, before):
  network = built(replicator.Replicator(*[("default",), ("mirrored", 2)][replicas - 1]))
  compute = getattr(network, way)
  kept = weights_of(network)
  if before:
    np.testing.assert_allclose(compute(X), X @ KERNEL)
  for factor in (1.0, 2.0):  # Averages move between evaluations.
    network.optimizer.averages[0].assign(factor * AVERAGE)
    with network.optimizer.averaged_weights():
      np.testing.assert_allclose(compute(X), factor * X @ AVERAGE)
      with network.optimizer.averaged_weights():
        np.testing.assert_allclose(compute(X), factor * X @ AVERAGE)
      np.testing.assert_allclose(compute(X), factor * X @ AVERAGE)
    np.testing.assert_allclose(compute(X), X @ KERNEL)
    assert weights_of(network) == kept


@pytest.mark.parametrize("before", [True, False], ids=["before", "inside"])
@pytest.mark.parametrize("way", WAYS)
def test_a_step_sees_the_averages_inside_and_the_weights_again_after(
    float64, one_or_two, way, before):
  network = built(one_or_two)
  compute = getattr(network, way)
  if before:
    compute(X)

  def step(x: tf.Tensor) -> list[tf.Tensor]:
    found = [compute(x)] if before else []
    with network.optimizer.averaged_weights():
      found += [compute(x), compute(x + 1.0)]
    return [*found, compute(x)]

  for n in (8, 4):  # The second is compiled on its own.
    found = map(np.concatenate, zip(*one_or_two.run(step, X[:n]), strict=True))
    *_, first, second, after = found
    np.testing.assert_allclose(first, X[:n] @ AVERAGE)
    np.testing.assert_allclose(second, (X[:n] + 1.0) @ AVERAGE)
    np.testing.assert_allclose(after, X[:n] @ KERNEL)
  np.testing.assert_allclose(compute(X), X @ KERNEL)


@pytest.mark.parametrize("way", WAYS)
def test_a_loss_has_gradients_by_its_weights_and_none_by_averages(float64, one_or_two, way):
  network = built(one_or_two)
  compute = getattr(network, way)
  compute(X)  # Compiled before, where no replica is.

  def step(x: tf.Tensor) -> tf.Tensor:
    def loss(x: tf.Tensor) -> tf.Tensor:
      with network.optimizer.averaged_weights():
        target = compute(x)
      return tf.reduce_mean(tf.square(compute(x) - target))
    return network.optimizer.minimize(loss, x)

  losses = one_or_two.run(step, X)
  difference = X @ (KERNEL - AVERAGE)
  np.testing.assert_allclose(np.mean(losses), np.mean(difference ** 2))
  expected = KERNEL - 0.5 * 2 * X.T @ difference / len(X)
  for copy in copies_of(network.net.weights[0].value):
    np.testing.assert_allclose(copy, expected)
  np.testing.assert_allclose(compute(X), X @ expected)


def test_the_weights_are_put_back_bit_for_bit_after_an_error(one_or_two):
  network = built(one_or_two)
  odd = np.array([[np.nan], [-0.0], [1e-42]], np.float32)
  network.net.weights[0].assign(odd)
  with pytest.raises(ZeroDivisionError), network.optimizer.averaged_weights():
    network.function(tf.cast(X, tf.float32))
    raise ZeroDivisionError
  assert weights_of(network) == [odd.tobytes()] * len(weights_of(network))


def in_a_thread(function: Callable) -> None:
  thread = threading.Thread(target=function)
  thread.start()
  thread.join()


def under_a_tape(function: Callable) -> None:
  with tf.GradientTape():
    function()


@pytest.mark.parametrize("place", [in_a_thread, under_a_tape])
def test_where_weights_cannot_be_swapped_functions_are_run_as_python(float64, place):
  network = Network()
  network.branching(X)
  found = []

  def compute() -> None:
    with network.optimizer.averaged_weights():
      np.testing.assert_array_equal(network.net.weights[0].value + 0.0, AVERAGE)
      found.append(network.branching(tf.constant(X)))
      np.testing.assert_array_equal(copies_of(network.net.weights[0]._value)[0], KERNEL)

  place(compute)
  np.testing.assert_allclose(found[0], X @ AVERAGE)


def test_a_tape_around_averages_finds_no_gradient_by_weights(float64):
  network = Network()
  with tf.GradientTape() as tape:
    with network.optimizer.averaged_weights():
      averaged = tf.reduce_sum(network.function(X))
    plain = tf.reduce_sum(network.function(X))
  kernel = network.net.weights[0].value
  np.testing.assert_allclose(tape.gradient([averaged, plain], kernel)[:, 0], X.sum(axis=0))


def test_what_is_traced_may_enter_them_outside_of_its_graph(float64):
  network = Network()

  @tf.function
  def compute(x):
    with contextlib.ExitStack() as stack:
      with tf.init_scope():
        stack.enter_context(network.optimizer.averaged_weights())
      return network.function(x)

  np.testing.assert_allclose(compute(X), X @ AVERAGE)
  np.testing.assert_allclose(network.function(X), X @ KERNEL)


def test_all_parts_of_an_evaluation_that_is_dealt_see_the_averages(float64, two):
  network = built(two)
  with (context.entered(tf.constant(1, tf.int64)), sharded(EvaluationShards(two, False)),
        network.optimizer.averaged_weights()):
    parts = list(deal(lambda i: network.net(X).numpy() + network.function(X), count=6))
  np.testing.assert_allclose(parts, [2 * X @ AVERAGE] * 6)
  np.testing.assert_allclose(network.function(X), X @ KERNEL)


def test_what_runs_eagerly_sees_the_averages(float64, one_or_two, run_eagerly):
  network = built(one_or_two)
  run_eagerly()

  def step(x: tf.Tensor) -> tf.Tensor:
    with network.optimizer.averaged_weights():
      return network.function(x) + network.any_size(x)

  np.testing.assert_allclose(np.concatenate(one_or_two.run(step, X)), 2 * X @ AVERAGE)
  np.testing.assert_allclose(step(X), 2 * X @ AVERAGE)


def test_a_graph_without_its_function_computes_with_averages_outside_and_is_refused_in_a_step(
    float64, one_or_two):
  network = built(one_or_two)
  graph = network.function.get_concrete_function(tf.TensorSpec([None, 3], tf.float64))
  other = tf.function(lambda x: 2.0 * x).get_concrete_function(tf.TensorSpec([None, 3], tf.float64))
  with network.optimizer.averaged_weights():
    np.testing.assert_allclose(graph(tf.constant(X)), X @ AVERAGE)

  def step(x: tf.Tensor) -> tf.Tensor:
    with network.optimizer.averaged_weights():
      return graph(other(x))

  assert "'function' was already compiled by get_concrete_function" in refusal(
      one_or_two.run, step, X)
