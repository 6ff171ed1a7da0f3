"""Random draws that a resumed run does not go on with, or that all replicas make alike."""

import replicator
from replicator import random
from replicator.strategies.tracing import draws
from replicator.training.checks.inspection import Evidence
from tests.programs.logs import rows
from tests.replicator.training.runs import MIRRORED_2, train

import keras
import pytest
import tensorflow as tf

X = [4, 6, 6, 3]
LOSES = {
    "normal": lambda x: x + tf.random.normal(X),
    "with a seed": lambda x: x + tf.random.uniform(X, seed=7),
    "shuffle": tf.random.shuffle,
    "flip": lambda x: tf.image.random_flip_left_right(x),
    "crop": lambda x: tf.image.random_crop(x, [4, 3, 3, 3]),
    "dropout": lambda x: tf.nn.dropout(x, 0.5),
    "gamma": lambda x: x + tf.random.gamma([], 1.0),
    "categorical": lambda x: tf.random.categorical(x[:, 0, 0], 1),
    "box": lambda x: tf.image.sample_distorted_bounding_box(
        [6, 6, 3], tf.zeros([1, 1, 4]), seed=1)[0],
    "candidates": lambda x: tf.random.uniform_candidate_sampler([[1]], 1, 1, True, 9)[0],
    "in a branch": lambda x: tf.cond(x[0, 0, 0, 0] > 0, lambda: tf.random.normal([]), lambda: 0.0)}
KEEPS = {
    "stateless": lambda x: tf.random.stateless_normal(X, [1, 2]),
    "generator": tf.random.Generator.from_seed(1).normal,
    "layer": keras.layers.GaussianNoise(1.0, seed=1),
    "none": tf.nn.relu}


def graph_of(function):
  argument = X if function == KEEPS["generator"] else tf.zeros(X)
  options = {"training": True} if isinstance(function, keras.layers.Layer) else {}
  with replicator.Replicator().scope():
    return tf.function(lambda: function(argument, **options),
                       autograph=False).get_concrete_function().graph


@pytest.mark.parametrize("kind", LOSES)
def test_a_draw_of_a_generator_in_an_operation_is_found(kind):
  graph = graph_of(LOSES[kind])
  line, = draws.warnings(graph, 1)
  assert "test_draws.py:" in line and "start over" in line and "replicator.random" in line
  evidence = Evidence(None)
  evidence.look_at_graph(graph)
  assert evidence.stateful_draws


@pytest.mark.parametrize("kind", KEEPS)
def test_others_are_not(kind):
  assert draws.warnings(graph_of(KEEPS[kind]), 1) == []


def test_keras_draws_the_same_on_every_replica():
  line, = draws.warnings(graph_of(KEEPS["layer"]), 2)
  assert "same on every replica" in line and "test_draws.py:" in line


class Draws(tf.Module):
  """A step of one draw."""

  def __init__(self, draw):
    super().__init__()
    self.draw = draw

  def __call__(self):
    return {"drawn": tf.reduce_mean(self.draw())}


def said(text: str) -> list[str]:
  return [line for line in text.splitlines() if line.startswith("warning")]


def test_a_training_warns_once_of_the_global_generator_of_keras(tmp_path, capsys):
  step = lambda: Draws(lambda: keras.random.normal([3]) + keras.random.uniform([3]))
  train(tmp_path, "train.steps = 4", "train.log_every = 2", step=step)
  line, = said(capsys.readouterr().out)
  assert "keras.random at " in line and "test_draws.py:" in line


def test_our_own_draws_go_on(tmp_path, capsys):
  def make_step():
    dropout = replicator.Dropout(0.5)
    return Draws(lambda: dropout(random.normal("x", [replicator.batch_size(), 2]), training=True))
  train(tmp_path, "train.steps = 1", *MIRRORED_2, step=make_step)
  assert said(capsys.readouterr().out) == []


def test_replicas_that_draw_alike_do_so(tmp_path, capsys):
  """The warning is right: two replicas with the noise of Keras have the mean of one."""
  def make_step():
    noise = keras.layers.GaussianNoise(1.0, seed=1)
    return Draws(lambda: noise(tf.zeros([4]), training=True))
  train(tmp_path / "1", "train.steps = 2", step=make_step)
  assert said(capsys.readouterr().out) == []
  train(tmp_path / "2", "train.steps = 2", *MIRRORED_2, step=make_step)
  assert len(said(capsys.readouterr().out)) == 1
  assert [row["drawn"] for row in rows(tmp_path / "1")] == pytest.approx(
      [row["drawn"] for row in rows(tmp_path / "2")])
