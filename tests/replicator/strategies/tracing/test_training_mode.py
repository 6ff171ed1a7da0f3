"""Networks that are trained and never called in training mode are named once; others are not."""

import replicator
from replicator import Dropout, GlobalBatchNorm, Replicator, SpectralNorm, UsageError
from replicator.strategies.compiled_step import CompiledStep
from tests.replicator.strategies.tracing.test_graphs import line_of

import keras
import numpy as np
import pytest
import tensorflow as tf

X = np.random.default_rng(0).normal(size=[8, 3]).astype(np.float32)


def network(*layers: keras.Layer) -> keras.Model:
  return keras.Sequential([keras.Input([3]), keras.layers.Dense(3), *layers])


class Own(keras.Model):
  """A network that says, like many, that training is False by default."""

  def __init__(self):
    super().__init__()
    self.inner = network(Dropout(0.5))
    self.built = True

  def call(self, x, training=False):
    return self.inner(x, training=training)


class Step(tf.Module):
  """Trains `net` through calls of `net` and `other`."""

  def __init__(self, call, net, other=None):
    super().__init__()
    self.net, self.other, self.call = net, other, call
    self.optimizer = replicator.wrap_optimizer(keras.optimizers.SGD(0.1), net.trainable_variables)

  def __call__(self, x):
    return {"loss": self.optimizer.minimize(lambda x: tf.reduce_mean(self.call(self, x) ** 2), x)}

  @tf.function(autograph=False)
  def compiled(self, x):
    return self.net(x, training=True)


def warnings(call, make_net, make_other=lambda: None, on: Replicator | None = None) -> list[str]:
  on = on or Replicator("one_device")
  with on.scope():
    step = Step(call, make_net(), make_other())
  compiled = CompiledStep(on, step, logs=True)
  compiled(0, X).fetch()
  return compiled.warnings()


def unsaid(step, x):
  return step.net(x)  # Unsaid.


NETWORKS = [(lambda: network(GlobalBatchNorm(), Dropout(0.5)), "GlobalBatchNorm, Dropout"),
            (lambda: network(SpectralNorm(keras.layers.Dense(2))), "SpectralNorm"),
            (Own, "Dropout")]


@pytest.mark.parametrize(("make_net", "kinds"), NETWORKS)
def test_a_trained_network_that_is_never_in_training_mode_is_named(make_net, kinds, one_or_two):
  warning, = warnings(unsaid, make_net, on=one_or_two)
  assert "the network 'net' is trained, but never called with training=True" in warning
  assert line_of("# Unsaid.", __file__) in warning and f"its {kinds} layers" in warning


NORMALIZED = NETWORKS[0][0]


def frozen() -> keras.Model:
  net = NORMALIZED()
  net.layers[1].trainable = net.layers[2].trainable = False
  return net


@pytest.mark.parametrize(("call", "make_net"), [
    (lambda step, x: step.net(x, training=True), NORMALIZED),
    (lambda step, x: step.net(x, training=True) - tf.stop_gradient(step.net(x)), NORMALIZED),
    (lambda step, x: step.net(x, training=False), NORMALIZED),
    (lambda step, x: step.net(x, training=True) - step.other(x), NORMALIZED),
    (unsaid, frozen), (unsaid, network), (unsaid, lambda: network(Dropout(0.0)))])
def test_no_other_network_is(call, make_net):
  assert warnings(call, make_net, NORMALIZED) == []


def test_a_compiled_network_works_or_is_refused_in_one_line():
  call = lambda step, x: step.compiled(x)
  assert warnings(call, lambda: network(GlobalBatchNorm())) == []
  with pytest.raises(UsageError, match=r"GlobalBatchNorm .* inside a tf\.while_loop"):
    warnings(call, lambda: network(GlobalBatchNorm()), on=Replicator("mirrored", logical_cpus=2))
