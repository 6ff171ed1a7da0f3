"""Optimizers of users, who override methods of a Keras optimizer: as Keras alone, or refused."""

import functools

from replicator import wrap_optimizer
from tests.programs.refusals import refusal
from tests.replicator.step.optimizers import small_network as small
from tests.replicator.step.optimizers.small_network import K

import pytest
import tensorflow as tf


class ByName(K.SGD):
  """A rate by the name of the variable."""

  def update_step(self, gradient, variable, learning_rate):
    factor = 0.25 if "offset" in variable.name else 1.0
    self.assign_sub(variable, tf.cast(learning_rate, gradient.dtype) * factor * gradient)


class ByPath(ByName):
  """The same by its path, which Keras alone does not tell."""

  def update_step(self, gradient, variable, learning_rate):
    factor = 0.25 if variable.path == "offset" else 1.0
    self.assign_sub(variable, tf.cast(learning_rate, gradient.dtype) * factor * gradient)


class ByShape(K.Adam):
  """No update of vectors."""

  def update_step(self, gradient, variable, learning_rate):
    if len(variable.shape) > 1:
      super().update_step(gradient, variable, learning_rate)


class Decays(K.AdamW):
  """Its own rule for the weight decay."""

  def _use_weight_decay(self, variable):
    return "offset" not in variable.name


class Slow(K.SGD):
  """Slots of its own."""

  def build(self, variables):
    super().build(variables)
    self.slow = self.add_optimizer_variables(variables, "slow")

  def update_step(self, gradient, variable, learning_rate):
    slow = self.slow[self._get_variable_index(variable)]
    moved = variable - tf.cast(learning_rate, gradient.dtype) * gradient
    self.assign(slow, 0.5 * slow + 0.5 * moved)
    self.assign(variable, slow)


class Rate(K.SGD):
  """A rate that Keras asks for."""

  def _get_current_learning_rate(self):
    return 0.5 * super()._get_current_learning_rate()


@pytest.mark.parametrize("make", [
    lambda: ByName(0.125), lambda: ByShape(0.125), lambda: Decays(0.125, weight_decay=0.25),
    lambda: Slow(0.125), lambda: Rate(0.125)], ids=["name", "shape", "decay", "slots", "rate"])
def test_what_a_class_overrides_is_honored(float64, one_or_two, make):
  trajectory, _ = small.train(one_or_two, make, 3)
  small.assert_close(trajectory, small.train_plainly(make(), 3))


def test_update_step_may_read_the_path_of_a_variable(float64, one_or_two):
  trajectory, _ = small.train(one_or_two, lambda: ByPath(0.125), 3)
  small.assert_close(trajectory, small.train_plainly(ByName(0.125), 3))


def test_an_update_step_that_one_object_has_sees_each_variable(float64, one_or_two):
  def make() -> K.Optimizer:
    optimizer = K.SGD(0.125)
    optimizer.update_step = functools.partial(ByName.update_step, optimizer)
    return optimizer

  trajectory, _ = small.train(one_or_two, make, 3)
  small.assert_close(trajectory, small.train_plainly(ByName(0.125), 3))


@pytest.mark.parametrize("method", [
    "apply", "apply_gradients", "_apply_weight_decay", "_clip_gradients", "scale_loss",
    "finalize_variable_values", "_backend_update_step"])
def test_what_would_never_be_called_is_refused(method):
  kind = type("Mine", (K.SGD,), {method: lambda self, *args: None})
  assert f"opt: Mine has its own method {method}, " in refusal(
      wrap_optimizer, kind(0.1, name="opt"), small.make_variables())


def test_a_method_that_one_object_has_is_refused():
  optimizer = K.SGD(0.1, name="sgd")
  optimizer.apply = lambda *args: None
  assert "sgd: SGD has its own method apply" in refusal(
      wrap_optimizer, optimizer, small.make_variables())
