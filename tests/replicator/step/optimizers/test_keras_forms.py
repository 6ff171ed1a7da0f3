"""The forms in which Keras users give optimizers: each works as in Keras, or is one line."""

from replicator import Replicator, wrap_optimizer, wrap_optimizers
from tests.programs.refusals import refusal

import keras
import numpy as np
import pytest
import tensorflow as tf

K = keras.optimizers


def variable() -> keras.Variable:
  return keras.Variable([1.0, -2.0], name="kernel")


@pytest.mark.parametrize(("given", "rate"), [
    ("sgd", 0.01), ("SGD", 0.01), (K.serialize(K.SGD(0.5)), 0.5),
    (K.SGD(K.schedules.ExponentialDecay(0.25, 1, 1.0)), 0.25), (K.SGD(0.125), 0.125)])
def test_a_name_a_config_and_a_schedule_make_the_update_of_keras(given, rate):
  weights = variable()
  optimizer = wrap_optimizer(given, [weights])
  Replicator().run(lambda: optimizer.apply([tf.constant([1.0, 4.0])]))
  np.testing.assert_allclose(weights.numpy(), [1.0 - rate, -2.0 - 4 * rate], rtol=1e-6)


def test_each_network_gets_its_own_optimizer_of_a_name():
  made = wrap_optimizers("adam", one=variable(), other=variable())
  assert made["one"].keras_optimizer is not made["other"].keras_optimizer
  assert type(made["one"].keras_optimizer) is K.Adam


@pytest.mark.parametrize(("given", "line"), [
    ("adamm", "wrap_optimizer: Keras cannot make an optimizer from 'adamm'. Did you mean 'Adam'?"),
    ({"class_name": "Adma", "config": {}}, "Keras cannot make an optimizer from {'class_name': "),
    (K.Adam, "wrap_optimizer: Adam is a class; add parentheses: Adam()"),
    ([K.Adam(), K.SGD()], "wrap_optimizer: given a list; an optimizer owns the variables of a "),
    ({"generator": K.Adam()}, "wrap_optimizer: given a dict; an optimizer owns the variables of a"),
    (lambda: K.Adam(), "wrap_optimizer: given a function; call it, since each network needs "),
    (None, "wrap_optimizer: a NoneType is not a Keras 3 optimizer; pass one such as "),
    (tf.compat.v1.train.AdamOptimizer(), "a AdamOptimizer is not a Keras 3 optimizer"),
    (K.LossScaleOptimizer(K.Adam()), "loss scaling is part of wrap_optimizer"),
    (K.SGD(lambda: 0.1), "its learning rate is a function, which is called only once; use a "),
    (K.SGD(K.schedules.CosineDecay), "its learning rate is a function, which is called only ")])
def test_what_is_no_optimizer_for_one_network_is_one_line(given, line):
  assert line in refusal(wrap_optimizer, given, [variable()])


def test_what_is_wrapped_is_not_wrapped_again():
  wrapped = wrap_optimizer(K.SGD(name="sgd"), [variable()])
  assert "sgd is already wrapped; use it as is" in refusal(
      wrap_optimizer, wrapped, [variable()])


def test_one_optimizer_is_not_for_several_networks():
  assert "adam is one optimizer, but each network needs its own; pass a function" in refusal(
      wrap_optimizers, K.Adam(name="adam"), one=variable(), other=variable())


def test_variables_are_a_list():
  net = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)], name="net")
  assert "given the network 'net'; pass its trainable_variables" in refusal(
      wrap_optimizer, K.SGD(), net)
  for one in (variable(), tf.Variable(1.0)):
    assert "given one variable; pass a list" in refusal(wrap_optimizer, K.SGD(), one)


def test_the_calls_of_keras_in_a_step_are_one_line():
  weights = variable()
  wrapped = wrap_optimizer(K.SGD(name="sgd"), [weights])
  with tf.GradientTape() as tape:
    loss = tf.reduce_sum(weights ** 2)
  gradients = tape.gradient(loss, [weights.value])
  assert "sgd.apply: given pairs, as from zip; write apply(gradients, variables)" in refusal(
      wrapped.apply, zip(gradients, [weights], strict=True))
  assert "sgd: the loss is a EagerTensor; pass a function that computes it" in refusal(
      wrapped.minimize, loss, [weights])
  np.testing.assert_array_equal(weights.numpy(), [1.0, -2.0])
