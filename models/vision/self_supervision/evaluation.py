"""Classifiers of few labels, on images that nothing was trained on: what features are worth."""

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
    """Features of images: uint8 `[n, h, w, c] -> [n, d]`."""
    ...


@gin.configurable(denylist=["train_on", "held_out"])
class FeatureEvaluator:
  """Classifies held-out images by features, and by pixels.

  Args:
    train_on: the images that the network is trained on.
    held_out: all others.
    num_labeled: how many of the first have a label that the classifiers may see, at most.
    neighbors: the k of the classification by k nearest neighbors, by the cosines of features; all
      labeled images if they are fewer.
  """

  def __init__(self, train_on: ImageSource, held_out: ImageSource, num_labeled: int = 5_000,
               neighbors: int = 5):
    at_least_one("FeatureEvaluator", num_labeled=num_labeled, neighbors=neighbors)
    self._parts = (train_on, min(num_labeled, train_on.size)), (held_out, held_out.size)
    self._neighbors = neighbors

  def __call__(self, step: HasFeatures) -> replicator.Evaluation:
    """Accuracies on held-out images, and a picture of some beside their nearest neighbors.

    `knn` and `linear` are those of features, by the nearest neighbors and by a linear classifier;
    `pixel_nn` and `pixel_linear` those of pixels, by the nearest neighbor and a linear classifier.
    Where all labeled images are of one class, there are none.
    """
    features = [np.concatenate([step.features(images[i:i + 250]).numpy()
                                for i in range(0, len(images), 250)]) for images in self._images]
    if len(np.unique(self._examples[0][1])) < 2:
      return replicator.Evaluation({}, {"samples": self._picture(features)},
                                   "no accuracies, because all labeled images are of one class")
    knn, linear = self._accuracies(features, self._neighbors, "cosine")
    pixel_nn, pixel_linear = self._of_pixels
    return replicator.Evaluation(
        {"knn": knn, "linear": linear, "pixel_nn": pixel_nn, "pixel_linear": pixel_linear},
        {"samples": self._picture(features)},
        method=f"accuracy on {len(self._images[1]):,} held-out images, of classifiers that saw the "
               f"labels of {len(self._images[0]):,}")

  # Not in the constructor, because TensorFlow must not start before the strategy is made.
  @functools.cached_property
  def _examples(self) -> list[tuple[np.ndarray, np.ndarray]]:
    """Images and labels that the classifiers see, and those that test them."""
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
    from sklearn.neighbors import KNeighborsClassifier  # It takes a second to load.
    if not all(np.isfinite(x).all() for x in features):
      return float("nan"), float("nan")
    (_, labels), (_, held_out_labels) = self._examples
    classifier = KNeighborsClassifier(min(neighbors, len(labels)), metric=metric)
    classifier.fit(features[0], labels)
    return (float(classifier.score(features[1], held_out_labels)),
            linear_probe(features[0], labels, features[1], held_out_labels))

  def _picture(self, features: Sequence[np.ndarray], rows: int = 8, columns: int = 8) -> np.ndarray:
    """Held-out images, each followed by the images whose features are nearest."""
    known, new = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
                  for x in (features[0], features[1][:rows]))
    nearest = np.argsort(-new @ known.T, axis=1)[:, :columns - 1]
    return image_grid(np.concatenate([
        np.concatenate([self._images[1][i:i + 1], self._images[0][each]])
        for i, each in enumerate(nearest)]), columns)
