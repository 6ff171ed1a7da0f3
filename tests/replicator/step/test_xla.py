"""XLA on several replicas: what is compiled, what is not, and that the training stays the same."""

import functools

import replicator
from replicator import Replicator, all_mean, microbatch, random, wrap_optimizer
from replicator.step import xla
from replicator.step.replicated import copies_of
from replicator.step.variables import variables_of
from replicator.strategies.compiled_step import CompiledStep
from tests.programs import optimized
from tests.programs.optimized import FUNCTION, GROUP

import keras
import numpy as np
import pytest
import tensorflow as tf

BATCH = np.random.default_rng(0).normal(size=[4, 8, 4, 4, 1])


def replicas(strategy: str = "mirrored") -> Replicator:
  return Replicator(strategy, logical_cpus=2, jit_compile=True)


class Classifier(tf.Module):
  """A step with what XLA could get wrong: state, random bits, a clipped update, averages."""

  def __init__(self):
    super().__init__()
    keras.utils.set_random_seed(0)
    self.network = keras.Sequential([
        keras.Input([4, 4, 1]), replicator.SpectralNorm(keras.layers.Conv2D(2, 3)),
        replicator.GlobalBatchNorm(), keras.layers.Flatten(), keras.layers.Dense(1)])
    self.optimizer = wrap_optimizer(keras.optimizers.Adam(0.01), self.network.trainable_variables,
                                    clip_norm=1.0, ema_decay=0.9)

  def __call__(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"loss": self.optimizer.minimize(self._loss, images)}

  def _loss(self, images: tf.Tensor) -> tf.Tensor:
    noise = random.uniform("noise", images.shape)
    return tf.reduce_mean(tf.tanh(self.network(images + noise, training=True)))


def made(on: Replicator) -> Classifier:
  random.set_seed(0)
  with on.scope():
    return Classifier()


def train(on: Replicator, step: Classifier, numbers: range) -> list[float]:
  """The losses of steps with these numbers; each call of the compiled function takes one stride."""
  function = CompiledStep(on, step, numbers.step, logs=True)
  return [loss for first in numbers
          for loss in function(first, _batch_of(first, numbers.step)).fetch()[0]["loss"]]


def _batch_of(first: int, steps: int) -> np.ndarray:
  """The inputs of a call of some steps: `[steps, n, ...]`, or `[n, ...]` for one."""
  return BATCH[first] if steps == 1 else BATCH[first:first + steps]


def copies(step: Classifier) -> dict[str, list[np.ndarray]]:
  """Each replica's copy of each variable."""
  return {path: [copy.numpy() for copy in copies_of(variable)]
          for path, variable in variables_of(step).items()}


class Training:
  """Four steps on two replicas, two in a call: what they left, and the optimized graph."""

  def __init__(self):
    self.on, self.step = replicas(), made(replicas())
    function = CompiledStep(self.on, self.step, 2, logs=True)
    with optimized.graphs() as self.graphs:
      self.losses = [*function(0, BATCH[:2]).fetch()[0]["loss"]]
    self.halfway = copies(self.step)
    self.losses += [*function(2, BATCH[2:]).fetch()[0]["loss"]]
    self.end = copies(self.step)


@pytest.fixture
def trained(float64):
  """Four steps in float64, where replicas agree to rounding; made once."""
  return _trained()


@functools.cache
def _trained() -> Training:
  return Training()


# ---- What is compiled ---------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["mirrored", "central_storage"])
def test_every_replica_compiles_what_is_between_collectives(strategy):
  def step(x):
    mean = all_mean(tf.tanh(tf.matmul(x, x, transpose_a=True)))
    return tf.reduce_sum(tf.exp(mean) / 2.0)

  with optimized.graphs() as graphs:
    outputs = replicas(strategy).run(step, np.ones([4, 3]))
  np.testing.assert_allclose(outputs, [4.5 * np.exp(np.tanh(2.0))] * 2)
  for device in ("CPU:0", "CPU:1"):
    assert graphs[device][GROUP] == 2
    assert not {"MatMul", "Tanh", "Exp", "Sum"} & graphs[device].keys()


def test_what_must_be_alike_is_not_compiled():
  def step(x):
    with xla.alike():
      alike = tf.reduce_max(tf.cumsum(x))
    return tf.exp(tf.sin(alike))

  with optimized.graphs() as graphs:
    outputs = replicas().run(step, np.full(4, 2.0))
  np.testing.assert_allclose(outputs, [np.exp(np.sin(4.0))] * 2)
  for device in ("CPU:0", "CPU:1"):
    assert {"Cumsum", "Max"} <= graphs[device].keys()
    assert not {"Sin", "Exp"} & graphs[device].keys()


def test_a_network_is_compiled_but_for_its_convolutions_and_sums_over_maps(trained):
  for device in ("CPU:0", "CPU:1"):
    left = trained.graphs[device]
    assert left[GROUP] > 1 and left[FUNCTION] == 1  # Adam's update, with the averages.
    assert not {"BiasAdd", "Tanh", "TanhGrad", "_FusedConv2D", "_FusedMatMul"} & left.keys()
    # Forward and by the kernel: on CPUs, TensorFlow is faster.
    assert left["Conv2D"] == left["Conv2DBackpropFilter"] == 1
    # The moments of batch normalization over a map, then over replicas; the gradient of the bias.
    assert left["Mean"] == 2 + 2 and left["BiasAddGrad"] == 1


def test_micro_batches_are_compiled_in_their_loop(float64):
  def part(x):
    return tf.reduce_mean(tf.sin(x) ** 2)

  x = BATCH[0]
  with optimized.graphs() as graphs:
    outputs = replicas().run(lambda x: microbatch(part, x, n=4), x)
  np.testing.assert_allclose(outputs, [np.mean(np.sin(half) ** 2) for half in np.split(x, 2)])
  for device in ("CPU:0", "CPU:1"):
    assert graphs[device][GROUP] and "Sin" not in graphs[device]


def test_the_first_call_of_a_loop_computes_what_later_ones_do():
  def step(x):
    weights = tf.cast(tf.reshape(tf.range(64 ** 2), [64, 64]) % 7, tf.float32) / 64.0
    layer = lambda h: tf.nn.elu(tf.nn.bias_add(h @ weights, tf.ones([64])))
    return tf.while_loop(lambda i, _: i < 2, lambda i, h: (i + 1, layer(h)), [0, layer(x)])[1]

  on, x = replicas(), np.random.default_rng(0).normal(size=[16, 64]).astype("float32")
  with optimized.graphs() as graphs:
    first = on.run(step, x)
  np.testing.assert_array_equal(first, on.run(step, x))
  for device in ("CPU:0", "CPU:1"):
    assert not {name for name in graphs[device] if name.startswith("_Fused")}


def test_what_xla_does_not_know_runs_without_it():
  def step(x):
    return tf.strings.length(tf.strings.as_string(tf.reduce_sum(x))) + 1

  assert [int(n) for n in replicas().run(step, np.arange(10, 14))] == [3, 3]


def test_checks_are_not_dropped():
  def step(x):
    tf.debugging.assert_less(x, 3.0, message="too large")
    return tf.reduce_sum(tf.exp(x))

  on = replicas()
  on.run(step, np.ones(4, np.float32))
  with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
    on.run(step, np.full(4, 3.0, np.float32))


# ---- The training -------------------------------------------------------------------------------


def test_training_is_that_of_one_replica_without_xla(trained):
  on = Replicator("one_device")
  np.testing.assert_allclose(trained.losses, train(on, made(on), range(4)), rtol=1e-11)


@pytest.mark.slow
def test_a_training_that_is_compiled_again_continues_bit_for_bit(trained):
  for path, variable in variables_of(trained.step).items():
    for copy, value in zip(copies_of(variable), trained.halfway[path], strict=True):
      copy.assign(value)
  train(trained.on, trained.step, range(2, 4, 2))  # With a new function, as in a resumed run.
  for path, values in copies(trained.step).items():
    before, *others = trained.end[path]
    assert {value.tobytes() for value in (*values, *others)} == {before.tobytes()}, path
