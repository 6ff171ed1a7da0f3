"""Warnings about variables that a step does not train, and none about those that it need not."""

from replicator import Replicator, wrap_optimizer
from replicator.strategies.compiled_step import CompiledStep
from tests.programs.refusals import refusal

import keras
import pytest
import tensorflow as tf


def network(*more: keras.layers.Layer) -> keras.Sequential:
  return keras.Sequential([keras.Input([2]), keras.layers.Dense(2, name="first"), *more])


def said(step: tf.Module, replicator: Replicator | None = None) -> list[str]:
  compiled = CompiledStep(replicator or Replicator("default"), step, logs=True)
  compiled.trace(None)
  lines = compiled.warnings()
  assert compiled.warnings() == []
  return lines


class Two(tf.Module):
  """Two networks and an optimizer of both, with some updates that each have a loss."""

  def __init__(self, *losses, **options):
    super().__init__()
    self.a, self.b = network(), network(keras.layers.Dense(1, name="last"))
    self.x = tf.ones([4, 2])
    self.losses = losses
    self.optimizer = wrap_optimizer(
        keras.optimizers.SGD(0.1),
        self.a.trainable_variables + self.b.trainable_variables, **options)

  def __call__(self):
    for loss in self.losses:
      outside = self.b(self.x)
      self.optimizer.minimize(lambda loss=loss, outside=outside: tf.reduce_sum(loss(self, outside)))
    return {"loss": 0.0}


BOTH = lambda step, _: step.a(step.x) + step.b(step.x)
ONLY_A = lambda step, _: step.a(step.x)
ONLY_B = lambda step, _: step.b(step.x)
ROUNDED = lambda step, _: step.a(step.x) + tf.round(step.b(step.x))
OUTSIDE = lambda step, outside: step.a(step.x) + outside


@pytest.mark.parametrize("cut", [ROUNDED, OUTSIDE], ids=["rounded", "outside"])
def test_variables_without_a_gradient_are_named(cut, one_or_two):
  with one_or_two.scope():
    step = Two(cut)
  line, = said(step, one_or_two)
  assert line.startswith("the optimizer 'optimizer' has variables that get no gradient ")
  assert all(f"'{v.path}'" in line for v in step.b.trainable_variables)
  assert not any(v.path in line for v in step.a.trainable_variables)


@pytest.mark.parametrize("losses", [[BOTH], [ONLY_A, ONLY_B]], ids=["one update", "two updates"])
@pytest.mark.parametrize("options", [{}, {"every": 2, "clip_norm": 1.0, "ema_decay": 0.5}],
                         ids=["plain", "options"])
def test_there_is_no_warning_if_each_has_a_gradient_in_one_of_the_updates(losses, options):
  assert said(Two(*losses, **options)) == []


def test_a_network_that_is_not_used_needs_no_gradient():
  step = Two(lambda step, _: step.a(step.x))
  step.b = lambda x: x
  assert said(step) == []


def test_what_is_frozen_needs_no_gradient():
  step = Two(ROUNDED)
  step.b.trainable = False
  assert said(step) == []
  step.a.trainable = False
  assert said(step) == []  # Nor an update.


class NoVectors(keras.optimizers.Adam):
  """No update of vectors."""

  def update_step(self, gradient, variable, learning_rate):
    if len(variable.shape) > 1:
      super().update_step(gradient, variable, learning_rate)


@pytest.mark.parametrize("loss, count", [(BOTH, 0), (ROUNDED, 1)], ids=["all", "rounded"])
def test_what_an_optimizer_leaves_as_it_is_has_a_gradient(loss, count, one_or_two, monkeypatch):
  monkeypatch.setattr(keras.optimizers, "SGD", NoVectors)
  with one_or_two.scope():
    step = Two(loss)
  lines = said(step, one_or_two)
  assert len(lines) == count
  for line in lines:
    assert all(f"'{v.path}'" in line for v in step.b.trainable_variables)
    assert not any(v.path in line for v in step.a.trainable_variables)


class Late(tf.Module):
  """A network that gets more variables after it was given to an optimizer."""

  def __init__(self, change, wraps=lambda net: net.trainable_variables):
    super().__init__()
    self.net = network()
    self.optimizer = wrap_optimizer(keras.optimizers.SGD(0.1), wraps(self.net))
    change(self)

  def __call__(self):
    return {"loss": self.optimizer.minimize(
        lambda: tf.reduce_sum(self.net(tf.ones([4, 2]))))}


def own_optimizer(step: Late) -> None:
  step.net.add(keras.layers.Dense(1))
  step.second = wrap_optimizer(keras.optimizers.SGD(0.1), step.net.layers[1].trainable_variables)


@pytest.mark.parametrize("change, names", [
    (lambda step: step.net.layers[0].enable_lora(1), ["first/lora_kernel_a", "lora_kernel_b"]),
    (lambda step: step.net.add(keras.layers.Dense(1, name="last")), ["last/kernel", "last/bias"])],
                         ids=["LoRA", "a layer"])
def test_variables_that_are_made_later_are_named(change, names, one_or_two):
  with one_or_two.scope():
    step = Late(change)
  line, = said(step, one_or_two)
  assert line.startswith("variables that became trainable after wrap_optimizer belong to no opt")
  assert all(name in line for name in names)


def test_so_are_those_that_are_unfrozen_later():
  def freeze(step: Late) -> None:
    step.net.layers[0].trainable = False

  def head(net: keras.Sequential) -> list[keras.Variable]:
    net.add(keras.layers.Dense(1))
    return net.layers[1].trainable_variables

  step = Late(freeze, wraps=head)
  compiled = CompiledStep(Replicator("default"), step, logs=True)
  compiled.trace(None)
  assert compiled.warnings() == []
  step.net.layers[0].trainable = True
  compiled.trace(None)
  line, = compiled.warnings()
  assert "first/kernel" in line and "first/bias" in line


@pytest.mark.parametrize("change, wraps", [
    (lambda step: None, lambda net: net.layers[0].trainable_variables[:1]),
    (lambda step: setattr(step, "target", network()), lambda net: net.trainable_variables)],
    ids=["a part on purpose", "another network"])
def test_others_need_no_optimizer(change, wraps):
  assert said(Late(change, wraps)) == []


def test_a_second_optimizer_may_own_what_is_made_later():
  line, = said(Late(own_optimizer))
  assert line.startswith("the step does not apply its optimizer 'second'")


def test_the_scales_of_a_float8_layer_are_refused():
  net = network()
  net.layers[0].quantize("float8")
  assert "first/inputs_scale', the scale of a float8 layer, with its gradient" in refusal(
      wrap_optimizer, keras.optimizers.SGD(0.1), net.trainable_variables)
