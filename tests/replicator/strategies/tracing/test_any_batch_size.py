"""Functions that are compiled once for batches of any size."""

import gc
import weakref

import replicator
from tests.programs.refusals import refusal

import keras
import numpy as np
import tensorflow as tf

X = np.arange(8.0)


class Scaled(tf.Module):
  """Scales the examples of a batch, and counts how often it is traced."""

  def __init__(self, scale: float):
    super().__init__()
    self.scale = tf.Variable(scale)
    self.shapes: list[list] = []

  @replicator.any_batch_size
  def call(self, batch: dict[str, tf.Tensor], shift: tf.Tensor | None = None) -> tf.Tensor:
    """Scales `{"x": [n, d]}` and adds `[n, d]`."""
    self.shapes.append(batch["x"].shape.as_list())
    return self.scale * batch["x"] + (0.0 if shift is None else shift)


def test_any_size_takes_the_same_trace_and_other_arguments_have_their_own():
  scaled = Scaled(2.0)
  for n in (1, 5, 3):
    x = np.arange(3.0 * n, dtype=np.float32).reshape(n, 3)
    np.testing.assert_array_equal(scaled.call({"x": x}), 2.0 * x)
    np.testing.assert_array_equal(scaled.call({"x": tf.constant(x)}), 2.0 * x)
  assert scaled.shapes == [[None, 3]]
  np.testing.assert_array_equal(scaled.call({"x": x}, x), 3.0 * x)
  np.testing.assert_array_equal(scaled.call({"x": x[:, :1]}), 2.0 * x[:, :1])
  assert scaled.shapes == [[None, 3], [None, 3], [None, 1]]


def test_each_object_has_its_own_function_and_is_freed():
  one, other = Scaled(2.0), Scaled(3.0)
  x = np.ones([2, 3], np.float32)
  np.testing.assert_array_equal(one.call({"x": x}), 2.0 * x)
  np.testing.assert_array_equal(other.call({"x": x}), 3.0 * x)
  freed = weakref.ref(one)
  del one
  gc.collect()
  assert freed() is None


def test_where_functions_run_eagerly_it_is_the_function_itself(run_eagerly):
  is_eager = replicator.any_batch_size(lambda x: tf.executing_eagerly())
  assert not is_eager(tf.ones([4]))
  run_eagerly()
  assert is_eager(tf.ones([4]))


def test_a_plain_function_and_its_compiled_one():
  double = replicator.any_batch_size(lambda x: 2.0 * x)
  assert double(tf.ones([4])).shape == [4]
  concrete = double.get_concrete_function(tf.TensorSpec([None], tf.float32))
  assert concrete.structured_outputs.shape.as_list() == [None]


def test_a_loss_has_the_gradients_of_all_replicas(float64, synchronous):
  with synchronous.scope():
    scaled = Scaled(3.0)
    weight = keras.Variable(3.0, dtype="float64")
    optimizer = replicator.wrap_optimizer(keras.optimizers.SGD(0.5), [weight])
  scaled.scale, x = weight, np.arange(8.0).reshape(8, 1)
  np.testing.assert_allclose(scaled.call({"x": x}), 3.0 * x)  # Compiled before, of one replica.
  for whole in (True, False):
    before = float(weight.numpy())
    loss = lambda x, whole=whole: tf.reduce_mean(scaled.call({"x": x})) + (
        0.0 if whole else tf.reduce_mean(weight.value))
    synchronous.run(lambda x, loss=loss: optimizer.minimize(loss, x), x)
    np.testing.assert_allclose(weight.numpy(), before - 0.5 * (x.mean() + (not whole)))
  np.testing.assert_allclose(scaled.call({"x": x}), weight.numpy() * x)


def test_a_graph_of_one_replica_is_refused_in_the_loss_of_several(float64, synchronous):
  with synchronous.scope():
    weight = keras.Variable(3.0, dtype="float64")
    optimizer = replicator.wrap_optimizer(keras.optimizers.SGD(0.5), [weight])
  graph = tf.function(lambda x: weight.value * x).get_concrete_function(
      tf.TensorSpec([None], tf.float64))
  # Without a gradient, it is as good as any.
  np.testing.assert_allclose(np.concatenate(synchronous.run(
      lambda x: graph(x) + 0.0 * tf.cast(optimizer.learning_rate, x.dtype), X)), 3.0 * X)
  update = lambda x: optimizer.minimize(lambda x: tf.reduce_mean(graph(x) + weight.value), x)
  if synchronous.name == "mirrored":  # The other strategies here share the variable.
    assert "was compiled by get_concrete_function, with the weights of one replica" in refusal(
        synchronous.run, update, X)
  else:
    synchronous.run(update, X)
    np.testing.assert_allclose(weight.numpy(), 3.0 - 0.5 * (X.mean() + 1.0))


def test_values_that_a_scope_of_keras_replaces_are_not_kept():
  variable = keras.Variable(1.0)
  read = replicator.any_batch_size(lambda x: x * tf.convert_to_tensor(variable))
  with keras.StatelessScope([(variable, tf.constant(2.0))]):
    np.testing.assert_array_equal(read(tf.ones([2])), [2.0, 2.0])
  np.testing.assert_array_equal(read(tf.ones([2])), [1.0, 1.0])


class Noisy(Scaled):
  """Draws and counts in Python where it is compiled."""

  def __init__(self):
    super().__init__(1.0)
    self.count = 0

  @replicator.any_batch_size
  def draw(self, x: tf.Tensor) -> tf.Tensor:
    """Adds a number to `[n]`."""
    self.count += 1
    return x + np.random.normal()


def test_what_python_does_once_is_a_warning(capsys):
  noisy = Noisy()
  for n in (1, 2):
    noisy.draw(np.zeros(n, np.float32))
  assert capsys.readouterr().err.splitlines() == [
      "warning: np.random was called while Noisy.draw was traced, so its numbers are constants; "
      "pass it the numbers",
      "warning: the attribute 'count' changed from 0 to 1 while Noisy.draw was traced, which "
      "happens once, not at every call; if it is a counter, keep it in a tf.Variable"]
  scaled = Scaled(2.0)
  scaled.call({"x": np.ones([2, 1], np.float32)})
  assert not capsys.readouterr().err
