"""ResNet: what its losses and accuracies are, and what is measured."""

import replicator
from experiments import resnet
from models.vision.images.image_source import InMemoryImages, read
from replicator.app import config
from replicator.errors import UsageError
from replicator.step import context
from replicator.strategies.distributed_evaluation import EvaluationShards, sharded
from tests.experiments.line import one_step
from tests.programs.processes import ROOT

import keras
import numpy as np
import pytest
import tensorflow as tf

BATCH = {"image": np.random.default_rng(0).integers(0, 256, [8, 8, 8, 1]).astype(np.uint8),
         "label": np.arange(8, dtype=np.int32)}


def configure(*bindings: str) -> None:
  config.parse([str(ROOT / "configs" / "resnet_digits.gin")], list(bindings))


def classifier(*bindings: str) -> resnet.ImageClassifier:
  configure("ResNet.width_multiplier = 0.125", *bindings)
  return resnet.ImageClassifier(10, 1)


def test_a_network_and_a_loss_of_the_users_take_the_places_of_these():
  configure("ImageClassifier.label_smoothing = 0.0")
  step = resnet.ImageClassifier(
      10, 1, network=lambda classes, channels: keras.Sequential([
          keras.Input([8, 8, channels]), keras.layers.Flatten(), keras.layers.Dense(classes)]),
      loss=lambda classes, logits: tf.reduce_sum(tf.abs(classes - logits), 1))
  images, classes = tf.cast(BATCH["image"], tf.float32) / 255, tf.one_hot(BATCH["label"], 10)
  expected = np.abs(classes - step.network(images)).sum(1).mean()
  np.testing.assert_allclose(step._losses(images, classes)[1], expected, rtol=1e-5)


def test_an_evaluation_of_the_users_measures_what_is_held_out(monkeypatch):
  configure()
  monkeypatch.setattr(replicator, "train", lambda step, source, evaluate, workdir: None)
  measured = []
  resnet.train_resnet("run", evaluation=lambda images: measured.append(images.size))
  assert measured == [359]


def test_the_loss_is_that_of_smoothed_labels_and_only_kernels_decay(float64):
  step = classifier("ImageClassifier.label_smoothing = 0.2", "ImageClassifier.weight_decay = 0.5")
  images = tf.cast(BATCH["image"], tf.float64) / 127.5 - 1
  logits = step.network(images, training=True).numpy()
  targets = 0.8 * np.eye(10)[BATCH["label"]] + 0.02
  log_softmax = logits - np.log(np.exp(logits).sum(1, keepdims=True))
  expected = -(targets * log_softmax).sum(1).mean()
  variables = step.network.trainable_variables
  total, loss, accuracy = step._losses(images, tf.one_hot(BATCH["label"], 10, dtype=tf.float64))
  with tf.GradientTape() as tape:
    decay = step._decay()
  np.testing.assert_allclose([loss, total], [expected, expected + decay])
  assert accuracy == np.mean(logits.argmax(1) == BATCH["label"])
  for variable, gradient in zip(variables, tape.gradient(decay, variables), strict=True):
    if variable.name == "kernel":
      np.testing.assert_allclose(gradient, 0.5 * variable.numpy())
    else:
      assert variable.name in ("gamma", "beta", "bias") and gradient is None


def test_a_step_is_of_mixtures_of_augmented_images():
  step = classifier("ImageClassifier.label_smoothing = 0.2")
  step.augment = lambda images: -images  # First: what is mixed in stays as it is.
  step.mix = lambda images, classes: (
      images[::-1] + 0.25, 0.75 * classes[::-1] + 0.25 * classes)
  logits = step.network(0.25 - (BATCH["image"] / 127.5 - 1)[::-1], training=True).numpy()
  before = step.network.linear.kernel.numpy()
  classes = np.eye(10)[BATCH["label"]]
  targets = 0.8 * (0.75 * classes[::-1] + 0.25 * classes) + 0.02
  scalars = one_step(step, BATCH)
  log_softmax = logits - np.log(np.exp(logits).sum(1, keepdims=True))
  np.testing.assert_allclose(scalars["loss/network"], -(targets * log_softmax).sum(1).mean(),
                             rtol=1e-5)
  assert scalars["accuracy"] == np.mean(logits.argmax(1) == BATCH["label"][::-1])
  assert (step.network.linear.kernel.numpy() != before).any()


def test_accuracies_are_those_of_the_ranks_of_logits(monkeypatch):
  step = classifier()
  logits = np.random.default_rng(1).normal(size=[8, 10]).astype(np.float32)
  monkeypatch.setattr(step, "logits", lambda images: tf.constant(logits))
  found = step.measure(BATCH)
  ranks = (logits > logits[np.arange(8), BATCH["label"]][:, None]).sum(1)
  np.testing.assert_array_equal(found["top1"], ranks < 1)
  np.testing.assert_array_equal(found["top5"], ranks < 5)


@pytest.mark.parametrize("value, right", [(0.0, 1), (np.nan, 0)])
def test_a_network_of_equal_logits_is_right_about_one_class_at_most(value, right, monkeypatch):
  step = classifier()
  monkeypatch.setattr(step, "logits", lambda images: tf.fill([10, 10], value))
  found = step.measure({"image": BATCH["image"], "label": np.arange(10)})
  assert np.sum(found["top1"]) == right and np.sum(found["top5"]) == 5 * right


def test_an_evaluation_is_of_averaged_weights():
  step = classifier("wrap_optimizer.ema_decay = 0.5")
  before = step.logits(BATCH["image"]).numpy()
  step.network.linear.bias.assign_add(tf.ones([10]))
  np.testing.assert_array_equal(step.logits(BATCH["image"]), before)
  step.optimizer.averages[-1].assign(tf.fill([10], 3.0))
  np.testing.assert_allclose(step.logits(BATCH["image"]), before + 3, rtol=1e-6)


class Counting:
  """A classifier whose top-1 is the label of an image, and which counts how often it sees one."""

  def __init__(self) -> None:
    self.seen = np.zeros(1003, np.int64)

  def measure(self, batch: dict[str, np.ndarray]) -> dict[str, tf.Tensor]:
    numbers = batch["image"][..., :2].astype(np.int64) @ [256, 1]
    np.add.at(self.seen, numbers[:, 0, 0], 1)
    return {"top1": tf.constant(batch["label"]), "number": tf.constant(numbers[:, 0, 0]),
            "square": tf.constant(numbers[:, 0, 0] ** 2)}


NUMBERS = np.arange(1003)
NUMBERED = np.stack([NUMBERS // 256, NUMBERS % 256, 0 * NUMBERS], -1)[:, None, None]


@pytest.mark.parametrize("replicas", [1, 7])
def test_every_image_counts_once(replicas):
  labels = np.random.default_rng(0).integers(0, 1000, 1003)
  runner = replicator.Replicator("mirrored", logical_cpus=replicas)
  evaluate = resnet.Accuracy(InMemoryImages(NUMBERED, labels, ("a",)), part_size=100)
  counting = Counting()
  with context.entered(tf.constant(0, tf.int64)), sharded(
      EvaluationShards(runner, evaluate.on_all_workers)):
    found = evaluate(counting).scalars
  assert counting.seen.min() == 1  # What a replica without a part sees is not counted.
  np.testing.assert_allclose([found["top1"], found["number"], found["square"]],
                             [labels.mean(), NUMBERS.mean(), (NUMBERS ** 2).mean()], rtol=1e-15)


def source(*names: str) -> InMemoryImages:
  return InMemoryImages(np.zeros([4, 8, 8, 1]), np.zeros(4), names)


def test_validation_images_are_measured_and_the_others_trained_on(monkeypatch, tmp_path):
  given = []
  monkeypatch.setattr(replicator, "train", lambda step, data, evaluate, workdir: given.append(
      (data, evaluate)))
  everything, validation = source("a", "b"), source("a", "b")
  resnet.train_resnet(str(tmp_path), lambda: everything, lambda: validation)
  resnet.train_resnet(str(tmp_path), lambda: everything, validation_split=0.25)
  (data, evaluate), (train_on, held_out) = given
  assert (data, evaluate.source) == (everything, validation)
  assert (train_on.size, held_out.source.size) == (3, 1)
  with pytest.raises(UsageError, match=r"train_resnet\.validation: has the classes c, but "
                                       r"train_resnet\.data has a, b, without c; give "
                                       "both the same names"):
    resnet.train_resnet(str(tmp_path), lambda: everything, lambda: source("c"))


def test_a_validation_set_without_a_class_is_measured_by_the_names_of_the_others(
    monkeypatch, tmp_path, caplog):
  given = []
  monkeypatch.setattr(replicator, "train", lambda step, data, evaluate, workdir: given.append(
      evaluate.source))
  images = np.arange(3, dtype=np.uint8).reshape(3, 1, 1, 1)
  data = InMemoryImages(images, np.arange(3), ("cat", "dog", "eel"))
  resnet.train_resnet(str(tmp_path), lambda: data, lambda: InMemoryImages(
      images, np.array([0, 1, 0]), ("eel", "cat")))
  [found] = given
  assert found.class_names == data.class_names and found.labels.tolist() == [2, 0, 2]
  assert read(found, np.arange(3))[1].tolist() == [2, 0, 2]
  assert caplog.messages == [
      "train_resnet.validation: has no images of 1 of the 3 classes of train_resnet.data: dog"]
