"""Classifiers of few labels, on images that nothing was trained on: what features are worth."""

from collections.abc import Sequence
from typing import Protocol

import gin
import numpy as np
import tensorflow as tf

import replicator
from models.vision.classification.linear_probe import linear_probe
from models.vision.images.grid import image_grid
from models.vision.images.image_source import ImageSource, read
from replicator.errors import at_least_one


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
    neighbors: the k of the classification by k nearest neighbors, by the cosines of features.
  """

  def __init__(self, train_on: ImageSource, held_out: ImageSource, num_labeled: int = 5_000,
               neighbors: int = 5):
    at_least_one("FeatureEvaluator", num_labeled=num_labeled, neighbors=neighbors)
    self._neighbors = neighbors
    self._images, self._labels = zip(*(
        read(part, np.arange(min(part.size, size)))
        for part, size in ((train_on, num_labeled), (held_out, held_out.size))), strict=True)
    self._of_pixels = self._accuracies(
        [np.reshape(images, [len(images), -1]) / 255 for images in self._images], 1, "euclidean")

  def __call__(self, step: HasFeatures) -> replicator.Evaluation:
    """Accuracies on held-out images, and a picture of some beside their nearest neighbors.

    `knn` and `linear` are those of features, by the nearest neighbors and by a linear classifier;
    `pixel_nn` and `pixel_linear` those of pixels, by the nearest neighbor and a linear classifier.
    """
    features = [np.concatenate([step.features(images[i:i + 250]).numpy()
                                for i in range(0, len(images), 250)]) for images in self._images]
    return replicator.Evaluation(
        {**dict(zip(("knn", "linear"), self._accuracies(features, self._neighbors, "cosine"),
                    strict=True)),
         **dict(zip(("pixel_nn", "pixel_linear"), self._of_pixels, strict=True))},
        picture=self._picture(features),
        method=f"accuracy on {len(self._images[1]):,} held-out images, of classifiers that saw the "
               f"labels of {len(self._images[0]):,}")

  def _accuracies(self, features: Sequence[np.ndarray], neighbors: int, metric: str
                  ) -> tuple[float, float]:
    from sklearn.neighbors import KNeighborsClassifier  # It takes a second to load.
    if not all(np.isfinite(x).all() for x in features):
      return float("nan"), float("nan")
    classifier = KNeighborsClassifier(neighbors, metric=metric).fit(features[0], self._labels[0])
    return (float(classifier.score(features[1], self._labels[1])),
            linear_probe(features[0], self._labels[0], features[1], self._labels[1]))

  def _picture(self, features: Sequence[np.ndarray], rows: int = 8, columns: int = 8) -> np.ndarray:
    """Held-out images, each followed by the images whose features are nearest."""
    known, new = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
                  for x in (features[0], features[1][:rows]))
    nearest = np.argsort(-new @ known.T, axis=1)[:, :columns - 1]
    return image_grid(np.concatenate([
        np.concatenate([self._images[1][i:i + 1], self._images[0][each]])
        for i, each in enumerate(nearest)]), columns)
