"""Extractors made of the small classifier and of Keras models."""

from models.metrics.extractors.keras_features import KerasFeatures, SmallClassifier
from models.vision.builtin.digits import Digits
from models.vision.classification.small_classifier import load_or_train
from models.vision.images.image_source import read
from replicator.errors import UsageError

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
  folder = tmp_path_factory.mktemp("digits")
  return SmallClassifier(Digits(), folder), load_or_train(Digits(), folder)


def test_the_small_classifier_takes_gray_images_as_rgb(digits):
  extractor, classifier = digits
  images, _ = read(Digits(), np.arange(20))
  features, logits = extractor(np.repeat(images, 3, -1))
  expected = classifier(images)
  np.testing.assert_array_equal(features, expected[0])
  np.testing.assert_array_equal(logits, expected[1])
  assert features.shape == (20, extractor.num_features)
  assert extractor.name.startswith("classifier of Digits with weights ")
  assert not extractor.is_inception


def test_the_small_classifier_refuses_other_images(digits):
  color = np.random.default_rng(0).integers(0, 256, [2, 8, 8, 3], np.uint8)
  with pytest.raises(UsageError, match="of color images"):
    digits[0](color)
  with pytest.raises(UsageError, match="8x8 pixels only"):
    digits[0](np.zeros([2, 16, 16, 3], np.uint8))


@pytest.fixture(scope="module")
def model():
  inputs = keras.Input([16, 16, 3])
  x = keras.layers.Conv2D(5, 3, name="map", kernel_initializer=keras.initializers.HeNormal(0))(
      inputs)
  x = keras.layers.GlobalAveragePooling2D(name="pooled")(x)
  x = keras.layers.Dense(4, name="classes", kernel_initializer=keras.initializers.HeNormal(1))(x)
  return keras.Model(inputs, x, name="tiny")


IMAGES = np.random.default_rng(0).integers(0, 256, [3, 16, 16, 3], np.uint8)
SCALED = tf.constant(IMAGES / 127.5 - 1, tf.float32)


def test_the_outputs_of_a_model_are_features(model):
  extractor = KerasFeatures(model, "tiny")
  features, logits = extractor(IMAGES)
  np.testing.assert_allclose(features, model(SCALED), atol=1e-5)
  assert logits is None and extractor.num_features == 4
  assert extractor.resizing == "bicubic with antialiasing, to 16x16"


@pytest.mark.parametrize("layer", ["pooled", "map"])
def test_a_layer_gives_features_and_the_model_logits(model, layer):
  features, logits = KerasFeatures(model, "tiny", layer)(IMAGES)
  pooled = keras.Model(model.inputs, model.get_layer("pooled").output)
  np.testing.assert_allclose(features, pooled(SCALED), atol=1e-5)
  np.testing.assert_allclose(logits, model(SCALED), atol=1e-5)


def test_images_of_another_size_are_resized_and_prepared(model):
  large = np.repeat(np.repeat(IMAGES, 2, 1), 2, 2)
  features, _ = KerasFeatures(model, "tiny", preprocess=lambda images: images / 255)(large)
  resized = tf.image.resize(large, [16, 16], "bicubic", antialias=True)
  np.testing.assert_allclose(features, model(resized / 255), atol=1e-5)


def test_a_model_of_any_size_needs_no_resizing():
  inputs = keras.Input([None, None, 3])
  model = keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(inputs))
  extractor = KerasFeatures(model, "means")
  features, _ = extractor(IMAGES)
  np.testing.assert_allclose(features, IMAGES.mean((1, 2)) / 127.5 - 1, atol=1e-5)
  assert extractor.resizing == "none"


# NumPy 2 warns about how Keras saves.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_a_saved_model_is_loaded_by_gin(model, tmp_path):
  model.save(tmp_path / "tiny.keras")
  gin.parse_config(f"KerasFeatures.model = '{tmp_path}/tiny.keras'\n"
                   "KerasFeatures.name = 'tiny'\nKerasFeatures.layer = 'pooled'")
  features, _ = KerasFeatures()(IMAGES)
  np.testing.assert_array_equal(features, KerasFeatures(model, "tiny", "pooled")(IMAGES).features)


def model_of(shape: list[int | None]) -> keras.Model:
  inputs = keras.Input(shape)
  return keras.Model(inputs, keras.layers.Rescaling(2.0)(inputs))


def rows() -> keras.Model:
  return keras.Sequential([keras.Input([8, 8, 3]), keras.layers.Reshape([8, 24])])


@pytest.mark.parametrize("make, message", [
    (lambda: KerasFeatures("no.keras", "tiny"), "model = 'no.keras' cannot be loaded"),
    (lambda: KerasFeatures("old.h5", "tiny"), "model = 'old.h5' cannot be loaded"),
    (lambda: KerasFeatures(model_of([8, 8, 1]), "tiny"), "must take square RGB images"),
    (lambda: KerasFeatures(model_of([8, 16, 3]), "tiny"), "must take square RGB images"),
    (lambda: KerasFeatures(rows(), "tiny"), r"outputs of the shapes \[\(None, 8, 24\)\]"),
])
def test_other_models_are_refused(make, message):
  with pytest.raises(UsageError, match=message):
    make()

