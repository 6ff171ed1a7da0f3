"""A sum of three tensors has the same bits, whatever memory is free while it is computed."""

from replicator.strategies.tracing import graphs

import numpy as np
import pytest
import tensorflow as tf

X, Y = (np.random.default_rng(seed).normal(size=1000).astype(np.float32) for seed in (0, 1))


def terms(x, y):
  return tf.tanh(1.1 * x), tf.tanh(1.3 * y), tf.tanh(x * y)


def gradient(x, y):
  """The gradient of a tensor that is used three times."""
  with tf.GradientTape() as tape:
    tape.watch(x)
    z = tf.tanh(x)
    total = tf.reduce_sum(tf.exp(1.1 * z) + tf.sin(z * y) + tf.tanh(y + z))
  return tape.gradient(total, z)


SUMS = {"added": lambda a, b, c: (a + b) + c, "add_n": lambda *terms: tf.add_n(terms),
        "tree": lambda a, b, c: ((a + b) + c) + (a + 2.0 * c)}


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_does_not_depend_on_who_else_needs_its_terms(name):
  graphs.add_in_order()

  @tf.function
  def alone(x, y):
    return SUMS[name](*terms(x, y))

  @tf.function
  def beside(x, y):
    all_terms = terms(x, y)
    return SUMS[name](*all_terms), *all_terms[:2]  # Their memory is not free for the sum.

  expected = SUMS[name](*terms(tf.constant(X), tf.constant(Y))).numpy()
  assert alone(X, Y).numpy().tobytes() == expected.tobytes()
  assert beside(X, Y)[0].numpy().tobytes() == expected.tobytes()


def test_a_gradient_of_three_uses_is_the_same_compiled_and_line_by_line():
  graphs.add_in_order()
  expected = gradient(tf.constant(X), tf.constant(Y)).numpy()
  found = tf.function(gradient)(tf.constant(X), tf.constant(Y)).numpy()
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  operations = tf.function(gradient).get_concrete_function(
      tf.constant(X), tf.constant(Y)).graph.get_operations()
  assert not [each for each in operations if each.type == "AddN" and len(each.inputs) > 2]


def test_integers_and_lists_of_tensors_are_still_added():
  graphs.add_in_order()
  assert int(tf.add_n([tf.constant(1), tf.constant(2), tf.constant(4)])) == 7

  @tf.function
  def total(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      array = tf.TensorArray(tf.float32, 3, clear_after_read=False)
      for i in range(3):
        array = array.write(i, x * i)
      read = array.stack() * array.stack() + array.stack()
    return tape.gradient(read, x)
  np.testing.assert_allclose(total(tf.constant(2.0)), 2 * (0 + 2 + 8) + 3, rtol=1e-6)
