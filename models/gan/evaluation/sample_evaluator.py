"""Evaluation of a GAN: draws and measures its samples and reconstructions."""

import functools
from collections.abc import Callable
from typing import Any, Protocol

import replicator
from models.gan.evaluation.feature_metrics import FeatureMetrics  # noqa: F401  (for gin)
from models.gan.evaluation.mode_coverage import ModeCoverage  # noqa: F401  (for gin)
from models.gan.evaluation.sample_quality import SampleQuality
from models.gan.latents.distributions import classes_of_gan
from models.vision.images import grid
from models.vision.images.classes import NO_CLASSES, Classes
from models.vision.images.image_source import ImageSource, read
from replicator.step import context

import gin
import numpy as np
import tensorflow as tf


class Quality(Protocol):
  """Metrics of samples at each evaluation; constructed from the real images and a folder.

  If the class has `on_all_workers = True`, all workers call it together. Otherwise only the chief
  does.
  """

  description: str  # How the metrics are computed, in one line.

  def measure(self, generate: Callable[..., np.ndarray], classes: Classes = NO_CLASSES
              ) -> dict[str, float]:
    """Returns the metrics by name, without the prefix `eval/`.

    Args:
      generate: n -> n images [n, h, w, c], floats in [-1, 1]; with a slice of `range(n)` as the
        second argument, only those. Each evaluation uses the same latents.
      classes: classes of a conditional generator, whose n images have the labels
        `classes.in_shares(n)`.
    """
    ...


@gin.configurable(denylist=["data", "folder", "reconstructed"])
class SampleEvaluator:
  """Evaluator of samples, for any step that `samples` can call.

  Args:
    data: the real images.
    folder: where to save the classifier used by the metrics.
    quality: makes a `Quality` from data and folder: `@SampleQuality`, `@FeatureMetrics` or
      `@ModeCoverage`.
    rows: number of rows of the drawn grids.
    balanced: whether the measured samples have equally many labels of each class, instead of the
      class frequencies of the data that they are compared with.
    reconstructed: the images that a step with an encoder reconstructs; by default the data.
  """

  def __init__(self, data: ImageSource, folder: str,
               quality: Callable[[ImageSource, str], Quality] = SampleQuality, rows: int = 8,
               balanced: bool = False, reconstructed: ImageSource | None = None):
    self._data = data
    self._balanced = balanced
    self._reconstructed = reconstructed or data
    self._folder = folder
    self._make_quality = quality
    self.on_all_workers = getattr(quality, "on_all_workers", False)
    self._rows = rows
    self._quality: Any = None

  def __call__(self, gan: Any) -> replicator.Evaluation:
    """Returns a picture of `rows` x `rows` samples of all classes, and the metrics of `quality`.

    If the step has an encoder and `reconstruct`, also a picture of reconstructions next to it, and
    `reconstruction_error`, the mean squared error per pixel in [-1, 1].
    """
    # Not in the constructor, because nothing may be computed before the strategy exists.
    self._quality = self._quality or self._make_quality(self._data, self._folder)
    classes, method = classes_of_gan(gan, self._data), self._quality.description
    if len(classes) > 1:
      shares = "equal proportions" if self._balanced else "the proportions of the data"
      method += f"; labels in {shares}"
    picture = grid.image_grid(samples(gan, self._rows ** 2, classes=classes.balanced), self._rows)
    classes = classes.balanced if self._balanced else classes
    scalars = self._quality.measure(functools.partial(samples, gan, classes=classes), classes)
    if getattr(gan, "encoder", None) and hasattr(gan, "reconstruct"):
      pairs, error = reconstructions(gan, self._reconstructed, self._rows)
      picture = grid.side_by_side(picture, pairs)
      scalars = {**scalars, "reconstruction_error": error}
    return replicator.Evaluation(scalars, {"samples": picture}, method)


def reconstructions(gan: Any, source: ImageSource, rows: int) -> tuple[np.ndarray, float]:
  """Draws evenly spaced images of a source next to their reconstructions by `gan.reconstruct`.

  Returns:
    A grid of `rows` x `rows // 2` pairs, uint8 [h, w, 3], and the mean squared error per pixel in
    [-1, 1].
  """
  count = rows * (rows // 2)
  originals, labels = read(source, np.arange(count) * source.size // count)
  decoded = gan.reconstruct(originals, labels).numpy()
  error = np.mean(np.square(originals / 127.5 - 1.0 - decoded))
  return grid.paired_grid(originals, decoded, rows // 2), error


def samples(gan: Any, count: int, part: slice = slice(None), classes: Classes = NO_CLASSES,
            batch_size: int = 250) -> np.ndarray:
  """Draws samples with given class frequencies, from the same latents in each call: [n, h, w, c].

  `gan.latents` draws the latents `[count, gan.latent_dim]`, with the run's seed. `gan.generate`
  turns them and labels int32 `[n]` into images. `part` selects some of the `count` images, by
  default all.
  """
  with context.entered(tf.constant(0, tf.int64)):
    z = gan.latents("evaluation", [count, gan.latent_dim])[part]
  labels = tf.constant(classes.in_shares(count)[part])
  return np.concatenate([gan.generate(z[i:i + batch_size], labels[i:i + batch_size])
                         for i in range(0, len(z), batch_size)])
