"""Mode coverage of stacked digits: how many of the 1,000 modes samples cover, and how evenly."""

import os
from collections.abc import Callable

from models.gan.evaluation.sample_quality import label_accuracies
from models.vision.builtin.digits import Digits, StackedDigits
from models.vision.classification.small_classifier import load_or_train
from models.vision.images.classes import NO_CLASSES, Classes
from models.vision.images.image_source import ImageSource, to_uint8
from replicator import UsageError

import gin
import numpy as np
from scipy.special import rel_entr


@gin.configurable(denylist=["source", "folder"])
class ModeCoverage:
  """Mode coverage of generated images, for `StackedDigits`.

  A classifier trained on `Digits` classifies each channel of an image as a digit. This is the
  protocol of Lin et al. 2018 (arXiv:1712.04086), but their classifier and digits are MNIST's, so
  compare with their numbers with care. The classifier's errors have little effect: it gets all
  three digits of 99.1 % of real images right, and 25,600 random real images cover 1,000 modes with
  a divergence of 0.0196. A perfect generator would have 0.0195.
  """

  def __init__(self, source: ImageSource, folder: str | os.PathLike,
               num_samples: int = 25_600) -> None:
    """Loads the classifier.

    Args:
      source: the real images, which must be `StackedDigits`.
      folder: where to save the classifier, in a folder `digits`, one per run.
      num_samples: number of images to classify. Lin et al. use 26,000, or 25,600 when comparing
        with results published with that number.

    Raises:
      UsageError: the source is not `StackedDigits`, or there are fewer images than modes.
    """
    if not isinstance(source, StackedDigits):
      raise UsageError(f"ModeCoverage counts the modes of @StackedDigits, but the data is "
                       f"@{type(source).__name__}: use @SampleQuality for that")
    if num_samples < source.num_classes:
      raise UsageError(f"ModeCoverage.num_samples = {num_samples}: must be at least "
                       f"{source.num_classes}, or some modes cannot appear")
    self.num_samples = num_samples
    self._num_modes = source.num_classes
    self._classifier = load_or_train(Digits(), os.path.join(folder, "digits"))
    self.description = (
        f"{num_samples:,} generated images, each channel read by a digit classifier with "
        f"{100 * self._classifier.accuracy:.1f}% accuracy on {self._classifier.num_held_out:,} "
        "held-out digits")

  def measure(self, generate: Callable[[int], np.ndarray], classes: Classes = NO_CLASSES
              ) -> dict[str, float]:
    """Draws `num_samples` images and counts their modes; see `Quality`.

    Returns:
      modes_covered: number of modes with at least one image; 0 if an image is not finite.
      mode_divergence: KL(samples || uniform) in nats, `sum p log(k p)` with the fractions p of the
        samples in the k modes; NaN if an image is not finite. It is 0 for equal counts and log k
        for a single mode. N independent samples of a perfect generator have (k - 1) / 2N on
        average, for large N.
      classifier_accuracy: the classifier's accuracy on held-out digits.
      label_accuracy, lowest_label_accuracy: see `label_accuracies`; for a conditional generator.
    """
    images = np.asarray(generate(self.num_samples))
    covered, divergence, found = 0.0, np.nan, np.full([len(images)], -1)
    if np.isfinite(np.asarray(images, np.float64)).all():
      found = self.modes(to_uint8(images).numpy())
      counts = np.bincount(found, minlength=self._num_modes)
      covered = float(np.count_nonzero(counts))
      divergence = float(rel_entr(counts / counts.sum(), 1 / len(counts)).sum())
    return {"modes_covered": covered, "mode_divergence": divergence,
            "classifier_accuracy": self._classifier.accuracy,
            **(label_accuracies(found, classes.in_shares(len(found))) if classes else {})}

  def modes(self, images: np.ndarray) -> np.ndarray:
    """Returns the mode of each image: uint8 [n, 8, 8, 3] -> int [n], below 1,000."""
    channels = np.moveaxis(images, -1, 0).reshape(-1, *images.shape[1:3], 1)
    _, logits = self._classifier(channels)
    hundreds, tens, units = logits.argmax(-1).reshape(3, -1)
    return 100 * hundreds + 10 * tens + units
