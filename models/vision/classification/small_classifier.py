"""A small classifier, trained on an image source in seconds, whose features the metrics use.

    python -m models.vision.classification.small_classifier

retrains the classifier of the digits, which comes with this package.
"""

import dataclasses
import io
import json
import os
from pathlib import Path
from typing import Any

from models.vision.builtin.digits import Digits
from models.vision.images.image_source import ImageSource, read, to_unit_range
from replicator import UsageError, atomic

import keras
import numpy as np
import tensorflow as tf
from absl import logging

NUM_FEATURES = 64

_FILE = "classifier.npz"
_OF_DIGITS = Path(__file__).with_name("digits_classifier.npz")
_SEED = 0
_MAX_EXAMPLES = 10_000  # Including held-out ones, a fifth. Limits memory and time on big sources.
_EPOCHS = 25
_MAX_STEPS = 1000
_BATCH_SIZE = 64
_LEARNING_RATE = 3e-3
_WIDTHS = (16, 32, 64)  # Channels of the convolutions; each halves the size of the image.


@dataclasses.dataclass(frozen=True)
class Classifier:
  """A convolutional network: uint8 [n, h, w, c] -> float32 features [n, 64], logits [n, classes].

  The features are the activations before the last layer.
  """

  model: keras.Model  # The network, whose inputs are images in [-1, 1].
  accuracy: float  # The fraction of held-out images that it classifies correctly.
  num_train: int  # The number of training images.
  num_held_out: int  # The number of images that `accuracy` was measured on.

  def __call__(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return _predict(self.model, images)


def load_or_train(source: ImageSource, folder: str | os.PathLike) -> Classifier:
  """Loads the classifier of `source` from `folder`, or trains and saves it there.

  The classifier of `Digits` comes with this package: runs on digits start without training it, and
  their distances can be compared between machines, where a trained one would differ by rounding.
  All others are trained; see `train`. A saved classifier of a different kind of source (shape,
  number of classes, size) is replaced.

  Raises:
    UsageError: see `train`.
    ValueError: the source has fewer than two images.
  """
  file = Path(folder) / _FILE
  if file.exists() and (classifier := _load(file, source)):
    return classifier
  comes_with_us = type(source) is Digits
  classifier = (_load(_OF_DIGITS, source) if comes_with_us else None) or train(source)
  _save(file, source, classifier)
  return classifier


def load(folder: str | os.PathLike) -> Classifier:
  """Loads the classifier that `load_or_train` saved in `folder`, without its source.

  Raises:
    UsageError: there is no saved classifier.
  """
  file = Path(folder) / _FILE
  if file.exists() and (classifier := _load(file)):
    return classifier
  raise UsageError(f"{file}: no such file, so there is no classifier")


def train(source: ImageSource) -> Classifier:
  """Trains the classifier of `source`.

  At most 10,000 images are used, chosen by a fixed permutation: 80 % for training and the rest to
  measure the accuracy. Everything is float32 under any Keras dtype policy. The result depends only
  on the source, and no global random state is read or changed. Call this outside any distribution
  scope, because the classifier is not part of the trained model.

  Raises:
    UsageError: the source has only one class, so there is nothing to learn.
    ValueError: the source has fewer than two images.
  """
  if source.size < 2:
    raise ValueError(f"A classifier needs at least 2 images, the source has {source.size}.")
  model = _build(source.image_shape, source.num_classes)
  chosen = np.random.default_rng(_SEED).permutation(source.size)[:_MAX_EXAMPLES]
  num_train = min(len(chosen) - 1, round(0.8 * len(chosen)))
  images, labels = read(source, chosen)
  _fit(model, images[:num_train], labels[:num_train])
  _, logits = _predict(model, images[num_train:])
  accuracy = float(np.mean(logits.argmax(-1) == labels[num_train:]))
  logging.info("Classifier for the sample metrics: %.1f%% accuracy on %d held-out images",
               100 * accuracy, len(chosen) - num_train)
  return Classifier(model, accuracy, num_train, len(chosen) - num_train)


def _build(image_shape: tuple[int, int, int], num_classes: int) -> keras.Model:
  """Makes the network: float32 [n, h, w, c] in [-1, 1] -> features [n, 64], logits [n, classes].

  Every layer and initializer has an explicit name, dtype and seed. Keras would take missing ones
  from global state, which would affect the training run.
  """
  if num_classes < 2:
    raise UsageError("data of one class: a classifier learns no features from it; set "
                     "FeatureMetrics.extractor = @EfficientNetLite0, or @Inception2015")
  def layer(kind: type, *args: Any, name: str, **kwargs: Any) -> keras.layers.Layer:
    if kind in (keras.layers.Conv2D, keras.layers.Dense):
      kwargs["kernel_initializer"] = keras.initializers.HeNormal(seed=_SEED)
    return kind(*args, name=f"classifier_{name}", dtype="float32", **kwargs)

  inputs = x = keras.Input(image_shape, dtype="float32", name="classifier_image")
  shrink = -(-max(image_shape[:2]) // 32)
  if shrink > 1:
    x = layer(keras.layers.AveragePooling2D, shrink, name="shrink")(x)
  for i, width in enumerate(_WIDTHS):
    x = layer(keras.layers.Conv2D, width, 3, padding="same", activation="relu", name=f"conv{i}")(x)
    if min(x.shape[1:3]) > 4:
      x = layer(keras.layers.MaxPooling2D, 2, name=f"pool{i}")(x)
  x = layer(keras.layers.Flatten, name="flatten")(x)
  # Leaky, so that no feature is always 0 and missing from the covariances.
  features = layer(keras.layers.Dense, NUM_FEATURES, activation="leaky_relu", name="features")(x)
  logits = layer(keras.layers.Dense, num_classes, name="logits")(features)
  return keras.Model(inputs, [features, logits], name="classifier")


def _fit(model: keras.Model, images: np.ndarray, labels: np.ndarray) -> None:
  """Minimizes the cross-entropy with Adam; shifts each batch by up to an eighth of the image."""
  num_steps = min(_MAX_STEPS, _EPOCHS * -(-len(images) // _BATCH_SIZE))
  rate = keras.optimizers.schedules.CosineDecay(_LEARNING_RATE, num_steps, name="classifier_rate")
  optimizer = keras.optimizers.Adam(rate, name="classifier_adam")
  optimizer.build(model.trainable_variables)
  reach = tf.constant([images.shape[1] // 8, images.shape[2] // 8], tf.float32)

  @tf.function(autograph=False)
  def step(images: tf.Tensor, labels: tf.Tensor, number: tf.Tensor) -> None:
    shift = tf.random.stateless_uniform([2], [_SEED, number], -1.0, 1.0, alg="philox")
    shift = tf.cast(tf.round(shift * reach), tf.int32)
    with tf.GradientTape() as tape:
      _, logits = model(tf.roll(to_unit_range(images), shift, axis=[1, 2]), training=True)
      loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
    optimizer.apply(tape.gradient(loss, model.trainable_variables))

  generator = np.random.default_rng(_SEED)
  for number in range(num_steps):
    batch = generator.integers(len(images), size=_BATCH_SIZE)
    step(tf.constant(images[batch]), tf.constant(labels[batch]), tf.constant(number))


def _predict(model: keras.Model, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Computes features [n, 64] and logits [n, classes] of uint8 [n, h, w, c], 256 at a time."""
  outputs = [_forward(model, tf.constant(images[i:i + 256])) for i in range(0, len(images), 256)]
  features, logits = zip(*outputs, strict=True)
  return tf.concat(features, 0).numpy(), tf.concat(logits, 0).numpy()


@tf.function(autograph=False, reduce_retracing=True)
def _forward(model: keras.Model, images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  features, logits = model(to_unit_range(images), training=False)
  return features, logits


def _load(file: Path, source: ImageSource | None = None) -> Classifier | None:
  """Loads the classifier in a file; None if it is for a different kind of source."""
  with np.load(file) as saved:
    description = json.loads(str(saved["description"]))
    kind = description["source"]
    if source and kind != _kind(source):
      return None
    model = _build(tuple(kind["image_shape"]), kind["num_classes"])
    model.set_weights([saved[f"weight{i}"] for i in range(len(model.weights))])
  return Classifier(model, **description["classifier"])


def _save(file: Path, source: ImageSource, classifier: Classifier) -> None:
  result = {name: getattr(classifier, name) for name in ("accuracy", "num_train", "num_held_out")}
  description = {"source": _kind(source), "classifier": result}
  weights = {f"weight{i}": weight for i, weight in enumerate(classifier.model.get_weights())}
  content = io.BytesIO()
  np.savez_compressed(content, description=np.array(json.dumps(description)), **weights)
  file.parent.mkdir(parents=True, exist_ok=True)
  atomic.write_whole(file, content.getvalue())


def _kind(source: ImageSource) -> dict[str, Any]:
  return {"image_shape": list(source.image_shape), "num_classes": source.num_classes,
          "size": source.size}


if __name__ == "__main__":
  tf.config.experimental.enable_op_determinism()
  _save(_OF_DIGITS, Digits(), train(Digits()))
