"""Sample quality: a Fréchet distance, and the number of classes covered."""

import os
from collections.abc import Callable

from models.metrics.distances.feature_statistics import FeatureStatistics
from models.vision.classification.small_classifier import NUM_FEATURES, Classifier, load_or_train
from models.vision.images.classes import NO_CLASSES, Classes
from models.vision.images.image_source import ImageSource, read, to_uint8
from replicator import UsageError

import gin
import numpy as np
import tensorflow as tf

_COVERED_SHARE = 0.2
_SEED = 1


def label_accuracies(found: np.ndarray, labels: np.ndarray) -> dict[str, float]:
  """Returns how often a classifier assigns samples to the class that they were generated for.

  Args:
    found: the classes that the classifier predicts, int [n].
    labels: the classes that the samples were generated for, int [n].

  Returns:
    label_accuracy: the fraction over all samples.
    lowest_label_accuracy: the lowest fraction within a class, over the classes with samples.
  """
  right = np.bincount(labels, weights=found == labels)
  return {"label_accuracy": float(right.sum() / len(found)),
          "lowest_label_accuracy": float(np.min(right[labels] / np.bincount(labels)[labels]))}


@gin.configurable(denylist=["source", "folder"])
class SampleQuality:
  """Metrics that compare generated images with the real ones of a source.

  The features come from a small classifier trained on the same source, so use them only to compare
  runs on the same source. They are **not** Inception FID, and cannot be compared with published
  numbers. A source with a single class cannot train a classifier: then there are no metrics, and
  the description suggests alternatives.
  """

  def __init__(self, source: ImageSource, folder: str | os.PathLike,
               num_samples: int = 2_000) -> None:
    """Loads the classifier from `folder`, or trains it and saves it there.

    Args:
      source: real images with labels.
      folder: where to save the classifier, one per run.
      num_samples: number of real and of generated images to compare, at most `source.size`. With
        fewer than a few hundred, the distance of 64 features means little.

    Raises:
      UsageError: there are fewer than two images to compare.
    """
    if min(num_samples, source.size) < 2:
      raise UsageError(f"SampleQuality.num_samples = {num_samples} with {source.size} images of "
                       "data: both must be at least 2, and 2000 is a good number.")
    self.num_samples = min(num_samples, source.size)
    self._classifier: Classifier | None = None
    if source.num_classes < 2:
      self.description = (
          "no distances, because a classifier learns nothing from data of one class; for distances "
          "set SampleEvaluator.quality = @FeatureMetrics and FeatureMetrics.extractor = "
          "@EfficientNetLite0, or @Inception2015")
      return
    self._classifier = load_or_train(source, folder)
    chosen = np.random.default_rng(_SEED).permutation(source.size)[:self.num_samples]
    images, labels = read(source, chosen)
    self._statistics = FeatureStatistics.of(self._classifier(images)[0])
    self._shares = np.bincount(labels, minlength=source.num_classes) / self.num_samples
    self.description = (
        f"{self.num_samples:,} real and {self.num_samples:,} generated images; {NUM_FEATURES} "
        f"features of a classifier trained on {self._classifier.num_train:,} images of the same "
        f"data, with {100 * self._classifier.accuracy:.1f}% accuracy on "
        f"{self._classifier.num_held_out:,} held-out images (not Inception)")

  def measure(self, generate: Callable[[int], np.ndarray], classes: Classes = NO_CLASSES
              ) -> dict[str, float]:
    """Draws `num_samples` images, rounds them to 8 bits, and compares them; see `Quality`.

    With a source of one class, it returns no metrics.

    Returns:
      classifier_frechet_distance: the Fréchet distance of the features; NaN if an image is not
        finite. It is larger for fewer samples, so compare only numbers of equal `num_samples`.
      classes_covered: number of classes whose share of the generated images is at least a fifth
        of their share of the real ones, according to the classifier. It assigns a class to any
        image, so read this together with the distance. 0 if an image is not finite.
      classifier_accuracy: the classifier's accuracy on held-out real images, which shows how far
        to trust the other metrics.
      classifier_confidence: the mean probability of a generated image's predicted class. Blurry
        images lower it. NaN if an image is not finite.
      label_accuracy, lowest_label_accuracy: see `label_accuracies`; for a conditional generator.
    """
    if self._classifier is None:
      return {}
    from models.metrics.distances.frechet import frechet_distance  # Slow to import (SciPy).
    images = np.asarray(generate(self.num_samples))
    if not np.isfinite(np.asarray(images, np.float64)).all():
      distance, covered, confidence = np.nan, 0.0, np.nan
      found = np.full([len(images)], -1)
    else:
      features, logits = self._classifier(to_uint8(images).numpy())
      distance = frechet_distance(self._statistics, FeatureStatistics.of(features))
      found = logits.argmax(-1)
      shares = np.bincount(found, minlength=len(self._shares)) / len(images)
      covered = float(np.sum((self._shares > 0) & (shares >= _COVERED_SHARE * self._shares)))
      probabilities = tf.nn.softmax(tf.cast(logits, tf.float64))
      confidence = float(tf.reduce_mean(tf.reduce_max(probabilities, axis=-1)))
    return {
        "classifier_frechet_distance": distance,
        "classes_covered": covered,
        "classifier_accuracy": self._classifier.accuracy,
        "classifier_confidence": confidence,
        **(label_accuracies(found, classes.in_shares(len(found))) if classes else {}),
    }
