"""Evaluates a GAN by its samples and reconstructions: draws them, and measures them."""

import functools
from collections.abc import Callable
from typing import Any, Protocol

import replicator
from models.gan.evaluation.feature_metrics import FeatureMetrics  # noqa: F401  (for gin)
from models.gan.evaluation.mode_coverage import ModeCoverage  # noqa: F401  (for gin)
from models.gan.evaluation.sample_quality import SampleQuality
from models.vision.images import grid
from models.vision.images.image_source import ImageSource, read
from replicator.step import context

import gin
import numpy as np
import tensorflow as tf


class Quality(Protocol):
  """Measures samples at each evaluation; it is made of the real images and of a folder.

  If it has `on_all_workers = True`, as a class, all workers call it at once. Else the chief alone
  does.
  """

  description: str  # One line that says how the numbers are computed.

  def measure(self, generate: Callable[..., np.ndarray], num_classes: int = 0) -> dict[str, float]:
    """The numbers by name, without `eval/`.

    Args:
      generate: n -> n images [n, h, w, c], floats in [-1, 1]; with a slice of `range(n)` behind n
        only these. They are made from the same codes in each evaluation.
      num_classes: above 0, image i was drawn as one of class i % num_classes.
    """
    ...


@gin.configurable(denylist=["data", "folder", "reconstructed"])
class SampleEvaluator:
  """Draws and measures samples of any step with what `samples` needs.

  Args:
    data: the real images.
    folder: where the classifier behind the metrics is saved.
    quality: makes a `Quality` from data and folder: `@SampleQuality`, `@FeatureMetrics` or
      `@ModeCoverage`.
    rows: number of rows of the drawn grids.
    reconstructed: the images that a step with an encoder reconstructs; by default the data.
  """

  def __init__(self, data: ImageSource, folder: str,
               quality: Callable[[ImageSource, str], Quality] = SampleQuality, rows: int = 8,
               reconstructed: ImageSource | None = None):
    self._data = data
    self._reconstructed = reconstructed or data
    self._folder = folder
    self._make_quality = quality
    self.on_all_workers = getattr(quality, "on_all_workers", False)
    self._rows = rows
    self._quality: Any = None

  def __call__(self, gan: Any) -> replicator.Evaluation:
    """A picture of `rows` x `rows` samples, and the metrics of `quality`.

    With an encoder and `reconstruct`, images and their reconstructions beside these, and
    `reconstruction_error`, the mean squared error of a pixel in [-1, 1].
    """
    # Not in the constructor, because nothing may be computed before the strategy is made.
    self._quality = self._quality or self._make_quality(self._data, self._folder)
    picture = grid.image_grid(samples(gan, self._rows ** 2), self._rows)
    scalars = self._quality.measure(functools.partial(samples, gan), gan.num_classes)
    if getattr(gan, "encoder", None) and hasattr(gan, "reconstruct"):
      pairs, error = reconstructions(gan, self._reconstructed, self._rows)
      picture = grid.side_by_side(picture, pairs)
      scalars = {**scalars, "reconstruction_error": error}
    return replicator.Evaluation(scalars, {"samples": picture}, self._quality.description)


def reconstructions(gan: Any, source: ImageSource, rows: int) -> tuple[np.ndarray, float]:
  """Images, evenly spaced in a source, beside what `gan.reconstruct` makes of them.

  Returns:
    A grid of `rows` x `rows // 2` pairs, uint8 [h, w, 3], and the mean squared error of a pixel in
    [-1, 1].
  """
  count = rows * (rows // 2)
  originals, labels = read(source, np.arange(count) * source.size // count)
  decoded = gan.reconstruct(originals, labels).numpy()
  error = np.mean(np.square(originals / 127.5 - 1.0 - decoded))
  return grid.paired_grid(originals, decoded, rows // 2), error


def samples(gan: Any, count: int, part: slice = slice(None), batch_size: int = 250) -> np.ndarray:
  """Samples of all classes in turn, from the same codes in each call: [n, h, w, c].

  `gan.latents` draws the codes `[count, gan.latent_dim]`, by the seed of the run. `gan.generate`
  makes images of them and of labels int32 `[n]` below `gan.num_classes`. `part` says which of the
  `count` images are made, by default all.
  """
  with context.entered(tf.constant(0, tf.int64)):
    z = gan.latents("evaluation", [count, gan.latent_dim])[part]
  labels = (tf.range(count) % max(gan.num_classes, 1))[part]
  return np.concatenate([gan.generate(z[i:i + batch_size], labels[i:i + batch_size])
                         for i in range(0, len(z), batch_size)])
