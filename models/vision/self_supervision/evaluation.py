"""Evaluation of features by simple classifiers with few labels, on held-out images."""

import functools
from collections.abc import Sequence
from typing import Protocol

import replicator
from models.vision.classification.linear_probe import linear_probe
from models.vision.images.grid import image_grid
from models.vision.images.image_source import ImageSource, read
from replicator.errors import at_least_one

import gin
import numpy as np
import tensorflow as tf


class HasFeatures(Protocol):
  """A step that has learned features of images."""

  def features(self, images: np.ndarray) -> tf.Tensor:
    """Returns features of images: uint8 `[n, h, w, c] -> [n, d]`."""
    ...


@gin.configurable(denylist=["train_on", "validation"])
class FeatureEvaluator:
  """Evaluator that classifies held-out images by features, and by pixels.

  Args:
    train_on: the training images.
    validation: the held-out images, on which features are tested.
    num_labeled: maximum number of training images whose labels the classifiers use.
    neighbors: k of the k-nearest-neighbor classifier, by cosine similarity of features; at most the
      number of labeled images.
  """

  def __init__(self, train_on: ImageSource, validation: ImageSource, num_labeled: int = 5_000,
               neighbors: int = 5):
    at_least_one("FeatureEvaluator", num_labeled=num_labeled, neighbors=neighbors)
    self._parts = (train_on, min(num_labeled, train_on.size)), (validation, validation.size)
    self._neighbors = neighbors

  def __call__(self, step: HasFeatures) -> replicator.Evaluation:
    """Returns accuracies on held-out images, and a picture of some with their nearest neighbors.

    `knn_accuracy` and `linear_probe_accuracy` are those of nearest neighbors and of a linear
    classifier on features; `pixel_nn_accuracy` and `pixel_linear_probe_accuracy` those of the
    nearest neighbor and of a linear classifier on pixels. If all labeled images have the same
    class, there are no accuracies.
    """
    features = [np.concatenate([step.features(images[i:i + 250]).numpy()
                                for i in range(0, len(images), 250)]) for images in self._images]
    if len(np.unique(self._examples[0][1])) < 2:
      return replicator.Evaluation({}, {"samples": self._picture(features)},
                                   "no accuracies, because all labeled images are of one class")
    knn, linear = self._accuracies(features, self._neighbors, "cosine")
    pixel_nn, pixel_linear = self._of_pixels
    return replicator.Evaluation(
        {"knn_accuracy": knn, "linear_probe_accuracy": linear, "pixel_nn_accuracy": pixel_nn,
         "pixel_linear_probe_accuracy": pixel_linear},
        {"samples": self._picture(features)},
        method=f"accuracy on {len(self._images[1]):,} held-out images, of classifiers trained with "
               f"{len(self._images[0]):,} labels")

  # Not in the constructor, because TensorFlow must not start before the strategy exists.
  @functools.cached_property
  def _examples(self) -> list[tuple[np.ndarray, np.ndarray]]:
    """Images and labels for training the classifiers, and for testing them."""
    return [read(part, np.arange(count)) for part, count in self._parts]

  @property
  def _images(self) -> list[np.ndarray]:
    return [images for images, _ in self._examples]

  @functools.cached_property
  def _of_pixels(self) -> tuple[float, float]:
    return self._accuracies([np.reshape(images, [len(images), -1]) / 255
                             for images in self._images], 1, "euclidean")

  def _accuracies(self, features: Sequence[np.ndarray], neighbors: int, metric: str
                  ) -> tuple[float, float]:
    from sklearn.neighbors import KNeighborsClassifier  # Slow to import.
    if not all(np.isfinite(x).all() for x in features):
      return float("nan"), float("nan")
    (_, labels), (_, held_out_labels) = self._examples
    classifier = KNeighborsClassifier(min(neighbors, len(labels)), metric=metric)
    classifier.fit(features[0], labels)
    return (float(classifier.score(features[1], held_out_labels)),
            linear_probe(features[0], labels, features[1], held_out_labels))

  def _picture(self, features: Sequence[np.ndarray], rows: int = 8, columns: int = 8) -> np.ndarray:
    """Draws held-out images, each followed by the images with the nearest features."""
    known, new = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
                  for x in (features[0], features[1][:rows]))
    nearest = np.argsort(-new @ known.T, axis=1)[:, :columns - 1]
    return image_grid(np.concatenate([
        np.concatenate([self._images[1][i:i + 1], self._images[0][each]])
        for i, each in enumerate(nearest)]), columns)
