"""Keras' and TensorFlow's functions by name in gin files, each in a configuration that trains."""

import pathlib
from collections.abc import Callable, Sequence

import replicator
from replicator.app import config, keras_configurables
from replicator.configuration.gin_internals import registry
from replicator.internals.keras_internals import unsupported_update
from tests.programs.logs import rows
from tests.programs.refusals import refusal

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf

ALL_OPTIMIZERS = [name.lower() for name in keras_configurables._OPTIMIZERS]
OPTIMIZERS = [name.lower() for name in keras_configurables._OPTIMIZERS  # Muon needs Keras 3.13.
              if unsupported_update(getattr(keras.optimizers, name)()) is None]
SCHEDULES = {  # The values that each needs; at update 1 the rate is still near 0.1.
    "cosine_decay_restarts": {"initial_learning_rate": 0.1, "first_decay_steps": 1000},
    "exponential_decay": {"initial_learning_rate": 0.1, "decay_steps": 1000, "decay_rate": 0.9},
    "inverse_time_decay": {"initial_learning_rate": 0.1, "decay_steps": 1000, "decay_rate": 0.9},
}
INITIALIZERS = [keras_configurables._snake_case(name) for name in keras_configurables._INITIALIZERS]
ACTIVATIONS = list(keras_configurables._ACTIVATIONS)


@gin.configurable
class ManyParts(tf.Module):
  """A layer for each optimizer, with any initializers, through all activations."""

  def __init__(self, optimizers: Sequence[Callable[[], keras.optimizers.Optimizer]],
               initializers: Sequence[keras.initializers.Initializer],
               activations: Sequence[Callable[[tf.Tensor], tf.Tensor]]):
    super().__init__()
    self.activations = activations
    self.layers, self.optimizers = [], []
    for number, optimizer in enumerate(optimizers):
      layer = keras.layers.Dense(2, kernel_initializer=initializers[number % len(initializers)],
                                 activation=activations[number % len(activations)])
      layer.build([None, 2])
      self.layers.append(layer)
      with gin.config_scope(f"part{number}"):
        self.optimizers.append(replicator.wrap_optimizer(optimizer(), layer.trainable_variables))

  def __call__(self) -> dict[str, tf.Tensor]:
    x = replicator.random.normal("x", [4, 2])
    with tf.GradientTape(persistent=True) as tape:
      y = tf.add_n([layer(x) for layer in self.layers])
      y = tf.add_n([activation(y) for activation in self.activations])
      loss = tf.reduce_mean(tf.square(y - 1.0))
    for layer, optimizer in zip(self.layers, self.optimizers, strict=True):
      optimizer.apply(tape.gradient(loss, layer.trainable_variables))
    return {"loss": loss}


def test_each_is_used_in_a_run(tmp_path, monkeypatch, run_eagerly):
  monkeypatch.chdir(tmp_path)
  run_eagerly()  # Tracing it would take as long as a hundred steps.
  listed = lambda names, call="": f"[{', '.join(f'@{name}{call}' for name in names)}]"
  lines = [f"ManyParts.optimizers = {listed(OPTIMIZERS)}",
           f"ManyParts.initializers = {listed(INITIALIZERS, '()')}",
           f"ManyParts.activations = {listed(ACTIVATIONS)}",
           "leaky_relu.alpha = 0.1", "gelu.approximate = True", "orthogonal.gain = 0.5",
           "variance_scaling.mode = 'fan_avg'", "train.steps = 2", "train.log_every = 1"]
  for number, (schedule, values) in enumerate(SCHEDULES.items()):
    lines.append(f"part{number}/{OPTIMIZERS[number]}.learning_rate = @{schedule}()")
    lines += [f"{schedule}.{name} = {value}" for name, value in values.items()]
  pathlib.Path("many.gin").write_text("\n".join(lines) + "\n")
  config.parse(["many.gin"], [])
  parts = replicator.train(ManyParts, workdir="run")  # Every line is used.
  losses = [row["loss"] for row in rows(pathlib.Path("run"))]
  assert len(losses) == 2 and np.isfinite(losses).all()
  kinds = [type(o.keras_optimizer).__name__.lower() for o in parts.optimizers]
  assert kinds == OPTIMIZERS
  rates = [float(o.keras_optimizer.learning_rate) for o in parts.optimizers[:len(SCHEDULES)]]
  np.testing.assert_allclose(rates, 0.1, rtol=0.01)
  assert "leaky_relu.alpha = 0.1" in pathlib.Path("run/config.gin").read_text()


@pytest.mark.parametrize("binding, words", [
    ("adam.weight_decay = 'much'", "must be float or LearningRateSchedule or None, not str"),
    ("adam.beta_1 = 'much'", "must be float or LearningRateSchedule, not str"),
    ("adam.amsgrad = 1", "must be bool, not int"),
    ("adam.name = 3", "must be str or None, not int"),
    ("exponential_decay.decay_steps = 'x'", "must be float, not str"),
    ("variance_scaling.mode = 1", "must be str, not int"),
    ("relu.features = 1.0", "'relu' gets its 'features' from the program; it cannot be set here")])
def test_values_of_another_type_are_refused(binding, words):
  assert words in refusal(config.parse, [], [binding])
  config.parse([], ["he_normal.seed = None", "adam.weight_decay = None", "sgd.momentum = 1"])


def test_each_has_one_name():
  names = [selector.rpartition(".")[2] for selector, _ in registry().items()
           if selector.startswith(("keras.", "tf."))]
  assert sorted(names) == sorted([*ALL_OPTIMIZERS, *SCHEDULES, *INITIALIZERS, *ACTIVATIONS])
  for name in names:
    assert name == name.lower() and len(registry().matching_selectors(name)) == 1
