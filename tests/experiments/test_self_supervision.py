"""Self-supervision: its step on one replica and on several, its teacher, and what it measures."""

import functools
from types import SimpleNamespace

from experiments import self_supervision
from models.vision.augmentation.random_view import Augmented, TwoViews
from models.vision.images.image_source import InMemoryImages
from models.vision.self_supervision import losses
from models.vision.self_supervision.evaluation import FeatureEvaluator
from replicator.app import config
from tests.experiments.line import one_step
from tests.programs.capabilities import eagerly
from tests.programs.closeness import close
from tests.programs.logs import assert_same_runs
from tests.replicator.training.runs import MIRRORED_2, train

import keras
import numpy as np
import pytest
import tensorflow as tf


class Flat(keras.Model):
  """A network of one layer, in place of `ResNet`."""

  num_features = 5

  def __init__(self, num_classes: int, channels: int):
    super().__init__()
    self.layer = keras.Sequential([keras.Input([2, 2, channels]), keras.layers.Flatten(),
                                   keras.layers.Dense(5)])
    self.linear = keras.layers.Dense(num_classes)

  def features(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
    return self.layer(images)


def step_of(loss, hidden=()) -> self_supervision.SelfSupervision:
  return self_supervision.SelfSupervision(
      1, loss=loss, optimizer=lambda: keras.optimizers.SGD(0.1), network=Flat,
      hidden_sizes=hidden, projection_dim=4)


def test_byol_predicts_the_projection_that_the_averaged_weights_give(float64):
  config.parse([], ["wrap_optimizer.ema_decay = 0.5"])
  step = step_of(losses.BYOL)
  (w, b), (v, c), (p, d) = ([x.numpy() for x in part.trainable_variables] for part in (
      step.network, step.projector, step.predictor))
  averages = [np.random.default_rng(0).normal(size=x.shape) for x in step.optimizer.averages]
  for average, value in zip(step.optimizer.averages, averages, strict=True):
    average.assign(value)
  images = np.random.default_rng(1).integers(0, 256, [2, 3, 2, 2, 1], np.uint8)
  first, second = images.reshape(2, 3, 4) / 127.5 - 1
  found = one_step(step, {"image": tf.constant(images[0]), "other": tf.constant(images[1])})
  unit = lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)
  projected = lambda x: (x @ w + b) @ v + c
  target = lambda x: unit((x @ averages[0] + averages[1]) @ averages[2] + averages[3])
  close(found["loss/network"], sum(
      2 - 2 * (unit(projected(x) @ p + d) * target(y)).sum(1).mean()
      for x, y in ((first, second), (second, first))), 1e-9)
  close(found["projection_variance"], 1 - (unit(projected(first)).mean(0) ** 2).sum(), 1e-9)
  # The averages moved by half of the way, and nothing else changed them: no gradient.
  for average, before, value in zip(step.optimizer.averages, averages,
                                    step.optimizer.variables_updated, strict=True):
    close(average.numpy(), (before + value.numpy()) / 2, 1e-9)


def test_two_replicas_do_not_change_the_training(tmp_path):  # Nor the teacher and its center.
  images = np.random.default_rng(0).integers(0, 256, [40, 2, 2, 1], np.uint8)
  trained = functools.partial(train, step=lambda: step_of(losses.DINO, hidden=(6,)), inputs=(
      TwoViews(lambda: Augmented(lambda: InMemoryImages(images, np.zeros(40), ("all",))))))
  settings = ["train.precision = 'float64'", "train.steps = 2", "train.checkpoint_every = 2",
              "train.check_first_step = False",
              "wrap_optimizer.ema_decay = 0.5"]
  with eagerly():
    trained(tmp_path / "one", *settings)
  trained(tmp_path / "two", *settings, *MIRRORED_2)
  assert_same_runs(tmp_path / "two", tmp_path / "one")


def test_an_evaluation_classifies_held_out_images_by_features_and_by_pixels():
  numbers = np.random.default_rng(0)
  labels = np.arange(60) % 3
  images = (40 * labels[:, None, None, None] + numbers.integers(0, 20, [60, 2, 2, 1])).astype(
      np.uint8)
  source = lambda part: InMemoryImages(images[part], labels[part], ("a", "b", "c"))

  class Step:
    def features(self, images):  # The second and the third class look alike.
      return tf.one_hot(np.minimum(images[:, 0, 0, 0] // 40, 1), 2)

  evaluation = FeatureEvaluator(source(slice(30)), source(slice(30, 60)), 20)(Step())
  assert (evaluation.scalars["pixel_nn_accuracy"]
          == evaluation.scalars["pixel_linear_probe_accuracy"] == 1)
  assert evaluation.scalars["knn_accuracy"] == pytest.approx(2 / 3, abs=0.05)
  assert "30 held-out images" in evaluation.method and "trained with 20 labels" in evaluation.method
  assert evaluation.images["samples"].dtype == np.uint8
  fewer_than_neighbors = FeatureEvaluator(source(slice(4)), source(slice(30, 60)))(Step())
  assert fewer_than_neighbors.scalars["pixel_nn_accuracy"] == 1
  one = InMemoryImages(images, np.zeros(60), ("all",))
  evaluation = FeatureEvaluator(one, one)(Step())
  assert evaluation.scalars == {} and "all labeled images are of one class" in evaluation.method
  assert evaluation.images["samples"].dtype == np.uint8


def test_features_are_of_images_from_minus_one_to_one(float64):
  step = step_of(losses.SimCLR)
  w, b = (x.numpy() for x in step.network.trainable_variables)
  images = np.random.default_rng(1).integers(0, 256, [3, 2, 2, 1], np.uint8)
  close(step.features(images), (images.reshape(3, 4) / 127.5 - 1) @ w + b, 1e-9)


def test_accuracies_are_those_on_held_out_images():
  images = 80 * (np.arange(60) % 3).astype(np.uint8)[:, None, None, None] * np.ones(
      [1, 2, 2, 1], np.uint8)
  labels = np.arange(60) % 3
  names = ("a", "b", "c")
  step = SimpleNamespace(features=lambda images: tf.one_hot(images[:, 0, 0, 0] // 80, 3))
  others = InMemoryImages(images[:30], (labels[:30] + (np.arange(30) < 12)) % 3, names)
  found = FeatureEvaluator(InMemoryImages(images, labels, names), others)(step).scalars
  assert found == pytest.approx(dict.fromkeys((
      "knn_accuracy", "linear_probe_accuracy", "pixel_nn_accuracy", "pixel_linear_probe_accuracy"),
      0.6))
