"""The signals of a step against NumPy, wherever and however it runs."""

import replicator
from replicator import (
  Replicator,
  SpectralNorm,
  UsageError,
  microbatch,
  recompute_grad,
  schedules,
  wrap_optimizer,
)
from replicator.step import context
from replicator.strategies.compiled_step import CompiledStep
from replicator.training.divergence.diagnostics import LearningRates, Signals
from tests.replicator.training.runs import MIRRORED_2, train

import keras
import numpy as np
import pytest
import tensorflow as tf

X = np.random.default_rng(0).normal(size=[8, 3])


def run(step, replicator_, steps_per_call=1, inputs=None):
  """The scalars that the last of two calls logged at its last step."""
  inputs = inputs or {"x": X if steps_per_call == 1 else np.stack([X] * steps_per_call)}
  function = CompiledStep(replicator_, step, steps_per_call, logs=True, hooks=[Signals(step)])
  for first in (0, steps_per_call):
    history, _ = function(first, inputs).fetch()
  return {name: values[-1] for name, values in history.items()}


class TwoLosses(tf.Module):
  """Gradients that NumPy knows: the mean of x for `a`, minus twice that for `b`; recomputed."""

  def __init__(self, updates=1, **kwargs):
    super().__init__()
    self.updates = updates
    self.a, self.b = (keras.Variable(np.ones(3)) for _ in range(2))
    self.optimizers = {
        name: wrap_optimizer(keras.optimizers.Adam(0.0), [variable], **kwargs)
        for name, variable in (("one", self.a), ("other", self.b), ("idle", keras.Variable(0.0)))}

  def __call__(self, batch):
    for factor in range(1, self.updates + 1):
      def loss_and_gradients(x, factor=factor):
        with tf.GradientTape() as tape:
          product = recompute_grad(lambda x: tf.linalg.matvec(x, self.a.value - 2 * self.b.value))
          loss = factor * tf.reduce_mean(product(x))
        return loss, tape.gradient(loss, {"one": [self.a.value], "other": [self.b.value]})
      loss, gradients = microbatch(loss_and_gradients, batch["x"], n=2)
      for name, of_network in gradients.items():
        self.optimizers[name].apply(of_network)
    return {"loss": loss}


NORM = float(np.linalg.norm(X.mean(0)))


def test_gradient_norms_are_those_of_the_mean_over_replicas_and_updates_before_clipping(float64):
  replicator_ = Replicator("mirrored", logical_cpus=2)
  with replicator_.scope():
    step = TwoLosses(updates=2, clip_norm=1e-3)
  logged = run(step, replicator_, steps_per_call=2)
  assert list(logged) == ["loss", "grad_norm/one", "grad_norm/other"]
  np.testing.assert_allclose(logged["grad_norm/one"], 1.5 * NORM, rtol=1e-12)
  np.testing.assert_allclose(logged["grad_norm/other"], 3 * NORM, rtol=1e-12)


def test_learning_rates_are_those_of_the_next_step_under_the_shortest_names(monkeypatch):
  optimizer = lambda rate: wrap_optimizer(keras.optimizers.SGD(rate), [keras.Variable([0.0])])
  step, falling = tf.Module(), optimizer(schedules.linear(0.5, end=2))
  step.actor, step.critic = tf.Module(), tf.Module()
  step.actor.optimizer, step.critic.optimizer = optimizer(0.25), optimizer(0.125)
  step.critic.alpha, step.others = optimizer(0.0625), [falling]
  rates = LearningRates(step)
  expected = {"learning_rate/actor/optimizer": 0.25, "learning_rate/critic/optimizer": 0.125,
              "learning_rate/alpha": 0.0625, "learning_rate/others/0": 0.5}
  assert rates.now() == expected
  monkeypatch.setattr(context.run.outside, "step", 1)
  assert rates.now() == {**expected, "learning_rate/others/0": 0.25}


class Decaying(tf.Module):
  """Two updates a step, at some rate."""

  def __init__(self, rate):
    super().__init__()
    self.variable = keras.Variable([0.0])
    self.optimizer = wrap_optimizer(keras.optimizers.SGD(rate), [self.variable])

  def __call__(self):
    for _ in range(2):
      self.optimizer.apply([tf.constant([1.0])])
    return {"loss": 0.0}


@pytest.mark.parametrize("rate, doubt", [
    (lambda: schedules.linear(0.5, end=5), "is 0 for the last 75%"),
    (lambda: schedules.linear(0.5), None), (lambda: 0.5, None),
    (lambda: schedules.linear(0.0), None),
    (lambda: schedules.piecewise([5, 10], [0.5, 0.0, 0.5]), None),
    (lambda: schedules.cosine(0.5, 0.1, end=12), "does not change after step 12"),
    (lambda: schedules.scaled_with_batch(schedules.linear(0.5, start=30), 8),
     "never changes, because its schedule starts at step 30"),
    (lambda: schedules.linear(0.5, 0.5, warmup=40), "is still warming up at the end"),
    (lambda: schedules.linear(0.5, 0.5, warmup=20), None),
    (lambda: schedules.linear(0.5, 0.1, warmup=4), None)],
    ids=["ends", "in time", "number", "zero", "pauses", "ends early", "begins late", "warms up",
         "warmed up", "warm-up"])
def test_a_rate_that_does_not_fit_the_run_is_said_once(tmp_path, capsys, rate, doubt):
  train(tmp_path, "train.steps = 20", *MIRRORED_2, step=lambda: Decaying(rate()))
  lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
  assert lines == ([
      f"warning: learning_rate/optimizer {doubt} of train.steps = 20: schedules count training "
      "steps; give it a length that fits, or a fraction of the run"] if doubt else [])


def normalized(units: int) -> SpectralNorm:
  """A layer with a kernel for which the power iteration converges in few calls."""
  def kernel(shape, dtype):
    random = np.random.default_rng(units)
    return np.outer(*(random.normal(size=n) for n in shape)) + 0.01 * random.normal(size=shape)
  return SpectralNorm(keras.layers.Dense(units, kernel_initializer=kernel), power_iterations=2)


class Layers(tf.Module):
  """Spectrally normalized layers in a network and by themselves."""

  def __init__(self):
    super().__init__()
    self.critic = keras.Sequential([keras.Input([3]), normalized(4), normalized(5)])
    self.plain = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
    self.heads = [normalized(2), normalized(2)]
    for head in self.heads:
      head.build([None, 3])

  def __call__(self, batch):
    def outputs(x):
      return [tf.reduce_mean(f(x, training=True)) for f in (self.critic, *self.heads, self.plain)]
    return {"loss": tf.add_n(microbatch(outputs, batch["x"], n=4))}


def sigma(layer: SpectralNorm) -> float:
  return np.linalg.svd(layer.kernel.numpy(), compute_uv=False)[0]


@pytest.mark.parametrize("is_eager", [False, True])
def test_sigma_is_the_largest_singular_value_of_a_network(float64, is_eager, run_eagerly):
  replicator_ = Replicator() if is_eager else Replicator("mirrored", 2)
  with replicator_.scope():
    step = Layers()
  if is_eager:
    run_eagerly()
  logged = run(step, replicator_, 1 if is_eager else 2)
  assert list(logged) == ["loss", "sigma/critic", "sigma/heads/0", "sigma/heads/1"]
  np.testing.assert_allclose(
      logged["sigma/critic"], max(sigma(layer) for layer in step.critic.layers), rtol=1e-9)
  for i, head in enumerate(step.heads):
    np.testing.assert_allclose(logged[f"sigma/heads/{i}"], sigma(head), rtol=1e-9)


def test_what_a_branch_computes_gives_no_signal():
  layer = SpectralNorm(keras.layers.Dense(2))
  layer.build([None, 3])
  def step(batch):
    x = tf.cast(batch["x"], tf.float32)
    return {"loss": tf.cond(tf.reduce_mean(x) < 99.0,
                            lambda: tf.reduce_mean(layer(x, training=True)), lambda: 0.0)}
  assert list(run(step, Replicator())) == ["loss"]


def test_a_scalar_may_not_have_the_name_of_a_signal(float64):
  class Step(TwoLosses):
    def __call__(self, batch):
      return {**super().__call__(batch), "grad_norm/one": 0.0}
  with pytest.raises(UsageError, match="returned 'grad_norm/one', which is already the name"):
    run(Step(), Replicator())


def test_nothing_is_computed_where_nobody_asks():
  def step():
    context.measured(None, pytest.fail)
    return {"loss": 0.0}
  CompiledStep(Replicator(), step, 1, logs=True)(0, None).fetch()
  replicator.Replicator().run(step)
