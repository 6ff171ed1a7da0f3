"""Any Keras network of a step is exported by the name of its attribute."""

import pathlib

import replicator
from models.export import formats, loading, networks
from models.gan.latents.distributions import normal_latents
from replicator import UsageError
from replicator.training.inputs.inputs import InputContext
from replicator.training.run import Run
from replicator.training.schedule import Schedule
from tests.programs.two_networks import Points, TwoNetworks

import keras
import numpy as np
import pytest
import tensorflow as tf


class Scores(keras.Model):
  """A network of which Keras does not know the inputs."""

  def __init__(self, results: int = 1):
    super().__init__()
    self.dense = keras.layers.Dense(2)
    self.dense.build([None, 3])
    self.results = results
    self.built = True

  def call(self, points, labels=None, training=False):
    scores = self.dense(points)
    return scores if self.results == 1 else (scores,) * self.results


class Step(tf.Module):
  """Calls one network twice, and another not at all."""

  def __init__(self):
    super().__init__()
    self.scores, self.pair, self.unused = Scores(), Scores(2), Scores()

  def __call__(self, batch):
    loss = tf.reduce_mean(self.scores(batch["x"], batch["y"], training=True))
    return {"loss": loss + tf.reduce_mean(self.pair(batch["x"], training=True)[0])}


class Scaled(Scores):
  """A network whose result depends on more than tensors."""

  def call(self, points, training=False, scale=1.0, shift=(0.0, 0.0), *, more=0.0):
    return scale * self.dense(points) * (2.0 if training else 1.0) + shift[0] - shift[1] + more


def of_several(as_dict):
  """A functional network of two arguments, in a list or by names."""
  inputs = {"b": keras.Input([3], name="b"), "a": keras.Input([1], name="a")}
  given = inputs if as_dict else list(inputs.values())
  return keras.Model(given, keras.layers.Dense(2)(inputs["b"]) + inputs["a"])


class Callers(tf.Module):
  """Calls networks in all ways that Keras has."""

  def __init__(self):
    super().__init__()
    self.scaled, self.listed, self.named = Scaled(), of_several(False), of_several(True)
    self.recurrent = keras.Sequential([keras.Input([3, 2]), keras.layers.GRU(2)])

  def __call__(self, batch):
    x, y = batch["x"], batch["y"]
    return {"loss": tf.reduce_mean(
        self.scaled(x, training=True, shift=[y, 2 * y], scale=3.0, more=y))}


class GAN(tf.Module):
  """A GAN with a discriminator."""

  latents = staticmethod(normal_latents)
  latent_dim, num_classes = 3, 0

  def __init__(self):
    super().__init__()
    self.discriminator = keras.Sequential([keras.Input([1, 1, 3]), keras.layers.Conv2D(4, 1)])

  def generate(self, z, labels):
    return z[:, tf.newaxis, tf.newaxis]


def training_of(step):
  return Run(step, replicator.Replicator("default"), pathlib.Path(), Schedule(1, 1, 1, 0, 0),
             Points(), InputContext(4))


def test_a_network_has_the_inputs_that_keras_knows_and_the_averages_of_its_optimizer():
  step = TwoNetworks()
  for average in step.optimizers["generator"].averages:
    average.assign(tf.random.stateless_normal(average.shape, [0, 1]))
  generator, critic = networks.chosen(training_of(step), [])
  assert (generator.name, critic.name) == ("generator", "critic")
  assert [each.shape for each in (*generator.inputs, generator.output)] == [(3,), (3,)]
  assert [each.shape for each in (*critic.inputs, critic.output)] == [(3,), (1,)]
  assert "with averaged weights" in generator.meaning and "averaged" not in critic.meaning
  [x] = generator.example(5)
  with step.optimizers["generator"].averaged_weights():
    expected = step.generator(x, training=False)
  np.testing.assert_allclose(generator.function(tf.constant(x)), expected, rtol=1e-6)
  assert np.abs(expected - step.generator(x, training=False)).max() > 0.1
  np.testing.assert_allclose(critic.function(tf.constant(x)), step.critic(x), rtol=1e-6)


def test_the_inputs_of_other_networks_are_those_of_the_step_and_files_compute_the_same(tmp_path):
  step = Step()
  [network] = networks.chosen(training_of(step), ["scores"])
  [points] = network.inputs  # The labels change nothing.
  assert (points.name, points.shape, points.dtype) == ("points", (3,), "float32")
  assert "call" not in vars(step.scores)
  given = dict(zip(["points"], network.example(7), strict=True))
  for path in formats.write(network, list(formats.SUFFIXES), tmp_path):
    found = loading.LOADERS[path.suffix](str(path), given)
    np.testing.assert_allclose(found, step.scores(given["points"]), rtol=0, atol=1e-6)


def test_a_network_is_called_with_what_the_step_gives_it_besides_tensors():
  step = Callers()
  [network] = networks.chosen(training_of(step), ["scaled"])
  assert [each.name for each in network.inputs] == ["points", "shift_0", "shift_1", "more"]
  x, first, second, more = given = network.example(4)
  np.testing.assert_allclose(network.function(*given), 3 * step.scaled(x) + first - second + more,
                             rtol=1e-5)


@pytest.mark.parametrize("name, order", [("listed", ["b", "a"]), ("named", ["a", "b"])])
def test_a_functional_network_of_several_arguments_is_exported(name, order, tmp_path):
  step = Callers()
  [network] = networks.chosen(training_of(step), [name])
  given = dict(zip([each.name for each in network.inputs], network.example(5), strict=True))
  assert list(given) == order
  expected = getattr(step, name)(given if name == "named" else [given["b"], given["a"]])
  [path] = formats.write(network, ["savedmodel"], tmp_path)
  np.testing.assert_allclose(loading.of_saved_model(str(path), given), expected, atol=1e-6)


def test_a_gan_has_its_generator_by_default_and_others_by_name():
  training = training_of(GAN())
  [generator] = networks.chosen(training, [])
  discriminator, again = networks.chosen(training, ["discriminator", "generator"])
  assert generator.name == again.name == "generator"
  assert (discriminator.inputs[0].shape, discriminator.output.shape) == ((1, 1, 3), (1, 1, 4))


@pytest.mark.parametrize("step, names, line", [
    (tf.Module, [], "Module is neither a GAN nor an agent, and none of its attributes is a Keras"),
    (Step, ["encoder"], "--networks=encoder: the run has no encoder; it has scores and pair and "),
    (Step, ["unused"], "--networks=unused: the step does not call it"),
    (Step, ["pair"], "--networks=pair: it returns a tuple, but a file holds one tensor"),
    (Callers, ["recurrent"], "a loop that reads variables, or collects .* give the recurrent "
     "layer unroll=True"),
    (GAN, ["encoder"], "the run has no encoder; it has generator and discriminator$")])
def test_what_cannot_be_exported_is_refused_in_one_line(step, names, line):
  with pytest.raises(UsageError, match=line):
    networks.chosen(training_of(step()), names)
