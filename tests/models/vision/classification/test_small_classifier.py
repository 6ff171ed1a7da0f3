"""The small classifier: its accuracy, its file, and its independence of global state."""

import random
import shutil

from models.vision.builtin.digits import Digits
from models.vision.builtin.shapes import Shapes
from models.vision.classification import small_classifier as classifier_module
from models.vision.classification.small_classifier import NUM_FEATURES, load, load_or_train, train
from models.vision.images.image_source import InMemoryImages, read
from replicator.errors import UsageError

import keras
import numpy as np
import pytest
import tensorflow as tf


@pytest.fixture
def brief(monkeypatch):
  """Shortens trainings."""
  monkeypatch.setattr(classifier_module, "_EPOCHS", 8)


@pytest.fixture(scope="module")
def digits_folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("run") / "classifier"
  return folder, load_or_train(Digits(), folder)


@pytest.mark.slow
def test_the_classifier_of_digits_comes_with_the_package(digits_folder, tmp_path, monkeypatch):
  _, ours = digits_folder
  trained = train(Digits())  # What training makes today, on this machine.
  assert trained.accuracy == pytest.approx(ours.accuracy, abs=0.01)
  images, _ = read(Digits(), np.arange(1797))
  classes, others = (classifier(images)[1].argmax(-1) for classifier in (ours, trained))
  assert np.mean(classes == others) > 0.99

  monkeypatch.setattr(classifier_module, "train", lambda source: trained)
  assert load_or_train(Digits(), tmp_path / "new") is not trained
  same_kind = InMemoryImages(images[::-1], np.zeros(1797), tuple("0123456789"))
  assert load_or_train(same_kind, tmp_path) is trained
  loaded = load_or_train(Digits(), tmp_path)  # The one of an earlier run stays.
  for weight, kept in zip(loaded.model.get_weights(), trained.model.get_weights(), strict=True):
    np.testing.assert_array_equal(weight, kept)


def test_digits_are_classified_correctly(digits_folder):
  _, classifier = digits_folder
  assert classifier.accuracy >= 0.97
  assert (classifier.num_train, classifier.num_held_out) == (1438, 359)
  images, labels = read(Digits(), np.arange(300))
  features, logits = classifier(images)
  assert features.shape == (300, NUM_FEATURES) and features.dtype == np.float32
  assert logits.shape == (300, 10) and logits.dtype == np.float32
  assert np.mean(logits.argmax(-1) == labels) > 0.97
  assert np.linalg.matrix_rank(np.cov(features.T)) == NUM_FEATURES


def test_a_saved_classifier_is_loaded_unchanged(digits_folder, tmp_path):
  folder, classifier = digits_folder
  before = [file.stat().st_mtime_ns for file in folder.iterdir()]
  loaded = load_or_train(Digits(), folder)
  assert [file.name for file in folder.iterdir()] == ["classifier.npz"]
  assert [file.stat().st_mtime_ns for file in folder.iterdir()] == before
  assert vars(loaded).keys() == vars(classifier).keys()
  assert (loaded.accuracy, loaded.num_train, loaded.num_held_out) == (
      classifier.accuracy, classifier.num_train, classifier.num_held_out)
  images, _ = read(Digits(), np.arange(20))
  for again in (loaded, load(folder)):  # The latter needs no source.
    for ours, theirs in zip(again(images), classifier(images), strict=True):
      np.testing.assert_array_equal(ours, theirs)
  with pytest.raises(UsageError, match=r"classifier\.npz: no such file"):
    load(tmp_path)


def test_that_of_another_source_is_replaced_and_its_accuracy_is_that_on_held_out_images(
    digits_folder, brief, tmp_path):
  shutil.copytree(digits_folder[0], tmp_path, dirs_exist_ok=True)
  images = np.random.default_rng(0).integers(0, 255, [20, 100, 100, 1], np.uint8)  # Big ones.
  other = load_or_train(InMemoryImages(images, np.arange(20), tuple(map(str, range(20)))), tmp_path)
  assert (other.num_train, other.num_held_out) == (16, 4)
  assert other.accuracy == 0.0  # No image of these classes was seen in training.
  features, logits = other(images[:3])
  assert features.shape == (3, NUM_FEATURES) and logits.shape == (3, 20)


@pytest.mark.slow
def test_training_depends_on_no_global_state_and_changes_none(brief):
  def draw():
    # Eager ops, Keras layers, NumPy and Python each have their own stream.
    return [tf.random.normal([]).numpy(), keras.random.normal([]).numpy(), np.random.rand(),
            random.random(), keras.layers.Dense(3)(tf.ones([1, 2])).numpy().tolist()]

  def next_name():
    return int(keras.layers.Dense(1).name.rpartition("_")[2])

  source = Shapes(8, size=200)
  images, _ = read(source, np.arange(20))
  expected = train(source)(images)
  keras.layers.Dense(1)  # The first one has no number.
  name, policy = next_name(), keras.config.dtype_policy()
  keras.utils.set_random_seed(5)
  undisturbed = draw()
  keras.utils.set_random_seed(5)
  keras.config.set_dtype_policy("mixed_bfloat16")
  try:
    classifier = train(source)
  finally:
    keras.config.set_dtype_policy(policy)
  assert draw() == undisturbed
  assert next_name() == name + 3  # Each `draw` makes one.
  for ours, theirs in zip(classifier(images), expected, strict=True):
    np.testing.assert_array_equal(ours, theirs)


def test_one_image_is_refused():
  with pytest.raises(ValueError, match="at least 2 images, the source has 1"):
    train(Shapes(8, size=1))


def test_data_of_one_class_is_refused_in_one_line(tmp_path):
  source = InMemoryImages(np.zeros([8, 8, 8, 1], np.uint8), np.zeros(8, int), ("all",))
  with pytest.raises(UsageError, match=r"^data of one class: .* set FeatureMetrics\.extractor = "
                                       "@EfficientNetLite0, or @Inception2015$"):
    load_or_train(source, tmp_path)
  assert not list(tmp_path.iterdir())
