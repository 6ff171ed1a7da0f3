"""Sampling of a trained generator: by seed and index, by class, and along paths between latents.

Image i of a seed does not depend on the number of images or devices: each batch draws its latents
from a separate stream, and all batches have the same size.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from models.gan.latents.distributions import Latents, classes_of_gan, is_uniform, truncated
from models.gan.networks.bigbigan import LatentDistribution
from models.metrics.images.image_sets import ImageSet, rgb
from models.vision.images.classes import SHOWN, Classes
from models.vision.images.image_source import to_uint8
from replicator import Optimizer, UsageError, any_batch_size, random, use_standing_statistics
from replicator.console.formatting import listed
from replicator.step import context
from replicator.training.run import Run

import numpy as np
import tensorflow as tf

BATCH = 32
_NEEDED = ("latents", "latent_dim", "num_classes", "generate")


def is_gan(step: Any) -> bool:
  """Returns whether a step can be sampled; see `check`."""
  return all(hasattr(step, name) for name in _NEEDED)


def check(gan: Any) -> None:
  """Raises a UsageError if a step lacks an attribute that sampling needs.

  `gan.latents` draws latents `[n, gan.latent_dim]`. `gan.generate(z, labels)` turns latents and
  labels into images `[n, h, w, c]` in [-1, 1]. Labels are int32 `[n]` below `gan.num_classes`, or
  class weights, floating `[n, gan.num_classes]`; an unconditional GAN ignores them.
  """
  missing = [name for name in _NEEDED if not hasattr(gan, name)]
  if missing:
    raise UsageError(f"{type(gan).__name__} has no '{missing[0]}', so it cannot be sampled as a "
                     f"GAN; a step needs {', '.join(_NEEDED)}")


def set_standing_statistics(gan: Any, passes: int, truncation: float | None = None) -> None:
  """Makes a GAN generate with batch statistics over `passes` passes; see `use_standing_statistics`.

  Each pass uses one batch of latents, truncated like those of `sample`. Labels have the class
  frequencies of the training data; if there are too many classes, evenly spaced ones are used.
  Moving statistics would belong to the training weights, not to the averaged ones.

  Raises:
    UsageError: the GAN has no `generator` with an optimizer in `optimizers`, or the generator has
      no `GlobalBatchNorm`.
  """
  generator, optimizers = getattr(gan, "generator", None), getattr(gan, "optimizers", {})
  if generator is None or "generator" not in optimizers:
    raise UsageError(f"standing statistics: {type(gan).__name__} has no 'generator' with an "
                     "optimizer of this name in 'optimizers'; leave them out")
  latents = _latents(gan, truncation)
  labels = classes_of_gan(gan).spread(BATCH * passes).reshape(BATCH, passes).T

  def forward(i: int) -> None:
    generator(_drawn(latents, gan.latent_dim, 0, i), tf.constant(labels[i]), training=True)

  def generate(z: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    with contextlib.ExitStack() as stack:
      with tf.init_scope():  # Computes them once, not in each call.
        stack.enter_context(optimizers["generator"].averaged_weights())
        stack.enter_context(use_standing_statistics(generator, forward, passes))
      return generator(z, labels, training=False)

  gan.generate = any_batch_size(generate)


def _latents(gan: Any, truncation: float | None) -> Latents:
  """Returns the latent distribution used for training, or a truncated one."""
  return gan.latents if truncation is None else truncated(gan.latents, truncation)


def classes_of_run(run: Run, facts: Mapping[str, Any]) -> Classes:
  """Returns the classes of a run's GAN, given its `facts` from `run.json`; see `classes_of_gan`.

  Raises:
    UsageError: the data's classes have changed since training.
  """
  found = classes_of_gan(run.module, run.inputs)
  names = tuple(facts.get("data", {}).get("classes", found.names))
  if found and names != found.names:
    raise UsageError(f"the run was trained on the classes {listed(names, SHOWN)}, but its data now "
                     f"has {listed(found.names, SHOWN)}: restore the training data, or set its new "
                     "path with --gin_param")
  return found


def check_classes(gan: Any, classes: Sequence[int]) -> None:
  """Raises a UsageError if a GAN does not have these classes."""
  if classes and not gan.num_classes:
    raise UsageError(f"classes {', '.join(map(str, classes))}: the GAN was trained without "
                     "classes; leave them out")
  unknown = [each for each in classes if not 0 <= each < gan.num_classes]
  if unknown:
    raise UsageError(f"class {unknown[0]}: the GAN has the classes 0 to {gan.num_classes - 1}")


def sample(gan: Any, count: int, seed: int = 0, classes: Sequence[int] | Classes = (),
           truncation: float | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields samples in batches: uint8 images `[n, h, w, c]` and their labels, int32 `[n]`.

  Args:
    gan: a GAN that `check` accepts.
    count: number of images.
    seed: chooses the latents. Those of image i depend on the seed and on i, not on `count`.
    classes: labels to cycle through, or classes whose frequencies the labels follow; by default
      cycles through all classes with training images.
    truncation: see `latents.truncated`; None for the training distribution.

  Raises:
    UsageError: a class or the truncation is invalid for this GAN, or an image is not finite.
  """
  latents, whole = _latents(gan, truncation), -(-count // BATCH) * BATCH
  if not classes:
    classes = classes_of_gan(gan).balanced
  if isinstance(classes, Classes):
    of_all = classes.in_shares(whole)
  else:
    check_classes(gan, classes)
    of_all = np.resize(np.asarray(classes, np.int32), whole)
  for first in range(0, count, BATCH):
    z = _drawn(latents, gan.latent_dim, seed, first // BATCH)
    labels = of_all[first:first + BATCH]
    wanted = min(BATCH, count - first)
    yield _images(gan, z, labels)[:wanted], labels[:wanted]


def interpolate(gan: Any, count: int, seeds: Sequence[int], classes: Sequence[int] = (),
                truncation: float | None = None) -> np.ndarray:
  """Interpolates between latents, classes, or both: uint8 images `[count, h, w, c]`.

  Between normal latents the path is an arc (White 2016, arXiv:1609.04468), because all of them have
  similar norms, and points on a straight line would have smaller ones. Between uniform latents it
  is a straight line, because an arc would leave their cube. Between classes, their embeddings are
  interpolated linearly.

  Args:
    gan: a GAN that `check` accepts.
    count: number of images, including the first and the last.
    seeds: the path goes through the first latent of each.
    classes: one class per latent, several classes for a single latent, or a single class for all
      latents; by default class 0.
    truncation: as for `sample`.

  Raises:
    UsageError: as for `sample`, or the seeds and classes do not define a path.
  """
  check_classes(gan, classes)
  stops = max(len(seeds), len(classes))
  if stops < 2 or {len(seeds), len(classes)} - {0, 1, stops}:
    raise UsageError(f"no path through {len(seeds)} seeds and {len(classes)} classes: give several "
                     "seeds, several classes, or equally many of both")
  latents = _latents(gan, truncation)
  stations = np.stack([_drawn(latents, gan.latent_dim, seed, 0)[0] for seed in seeds])
  between = _chord if is_uniform(gan.latents) else _arc
  positions = np.linspace(0.0, stops - 1.0, count)
  z = _path(stations, positions, between).astype(stations.dtype)
  rows = np.eye(max(gan.num_classes, 1))[list(classes) or [0]]
  weights = _path(rows, positions, _chord).astype(stations.dtype)
  labels = weights if gan.num_classes else np.zeros([count], np.int32)
  return _in_batches(gan, z, labels)


def reconstruct(gan: Any, images: np.ndarray, classes: Sequence[int] = ()) -> np.ndarray:
  """Encodes and decodes images: uint8 `[n, h, w, c]` -> the same.

  `classes` are the classes of the images, repeated as needed.

  Raises:
    UsageError: the GAN has no encoder, or it is conditional and no classes are given.
  """
  if not hasattr(gan, "reconstruct"):
    raise UsageError(f"{type(gan).__name__} cannot reconstruct images; if the class has an "
                     "encoder, set `reconstruct = models.gan.gans.reconstruct` in it")
  check_classes(gan, classes)
  if gan.num_classes and not classes:
    raise UsageError("the generator needs the classes of the images: give one class for all of "
                     "them, or one for each image, in order")
  labels = np.resize(np.asarray(classes or [0], np.int32), len(images))
  return np.concatenate([
      _checked(gan.reconstruct(tf.constant(images[i:i + BATCH]), tf.constant(labels[i:i + BATCH])))
      for i in range(0, len(images), BATCH)])


def optimizer_of(gan: Any, network: str) -> Optimizer | None:
  """Returns the optimizer named after the network in `optimizers`; None if there is none."""
  optimizers = getattr(gan, "optimizers", None)
  return optimizers.get(network) if isinstance(optimizers, Mapping) else None


def encode(gan: Any, images: tf.Tensor) -> tf.Tensor:
  """Encodes images to latents, or to their means: `[n, h, w, c] -> [n, latent_dim]`."""
  optimizer = optimizer_of(gan, "encoder")
  with optimizer.averaged_weights() if optimizer else contextlib.nullcontext():
    latents = gan.encoder(images, training=False)
  return latents.mean if isinstance(latents, LatentDistribution) else latents


def image_shape(gan: Any) -> tuple[int, int, int]:
  """Returns (height, width, channels) of the images that a GAN generates."""
  images, _ = next(sample(gan, 1))
  return images.shape[1:]


class SampleSet(ImageSet):
  """The first samples of a seed as an `ImageSet`."""

  naming = ("evaluate with the training data, or give your own step the attribute `classes`, with "
            "the same names")

  def __init__(self, name: str, gan: Any, size: int, seed: int, classes: Classes) -> None:
    """Takes the first `size` samples of a GAN, with the frequencies of `classes`; see `check`."""
    super().__init__(name, size, image_shape(gan)[:2], classes)
    self._gan = gan
    self._seed = seed

  def batches(self, indices: np.ndarray) -> Iterator[np.ndarray]:
    """Yields RGB images, uint8 [n, h, w, 3], at ascending indices; generates all up to the last."""
    first = 0
    for images, _ in sample(self._gan, int(indices[-1]) + 1, self._seed, self.classes):
      chosen = indices[(indices >= first) & (indices < first + len(images))] - first
      first += len(images)
      if len(chosen):
        yield rgb(images[chosen])

  def labels(self, indices: np.ndarray) -> np.ndarray | None:
    """Returns the labels of the images at indices, int [n]; None without classes."""
    return self.classes.in_shares(self.size)[indices] if self.classes else None


def _drawn(latents: Latents, latent_dim: int, seed: int, batch: int) -> np.ndarray:
  """Returns the latents of batch number `batch`, `[BATCH, latent_dim]`."""
  put_back = context.remember_run()
  random.set_seed(seed)
  try:
    with context.entered(tf.constant(batch, tf.int64)):
      return latents("sample", [BATCH, latent_dim]).numpy()
  finally:
    put_back()


def _in_batches(gan: Any, z: np.ndarray, labels: np.ndarray) -> np.ndarray:
  count, padded = len(z), -(-len(z) // BATCH) * BATCH
  z, labels = (np.resize(each, [padded, *each.shape[1:]]) for each in (z, labels))
  return np.concatenate([_images(gan, z[i:i + BATCH], labels[i:i + BATCH])
                         for i in range(0, padded, BATCH)])[:count]


def _images(gan: Any, z: np.ndarray, labels: np.ndarray) -> np.ndarray:
  return _checked(gan.generate(tf.constant(z), tf.constant(labels)))


def _checked(images: tf.Tensor) -> np.ndarray:
  if not np.isfinite(np.asarray(images, np.float64)).all():
    raise UsageError("the images are not finite: training diverged; choose an earlier step")
  return to_uint8(images).numpy()


def _path(stops: np.ndarray, positions: np.ndarray, between: Any) -> np.ndarray:
  """Returns points `[n, d]` at positions [n] in [0, k - 1] of a path through `stops [k, d]`."""
  if len(stops) == 1:
    return np.repeat(stops, len(positions), 0)
  firsts = np.minimum(positions.astype(int), len(stops) - 2)
  return np.stack([between(stops[first].astype(np.float64), stops[first + 1].astype(np.float64),
                           position - first)
                   for first, position in zip(firsts, positions, strict=True)])


def _chord(start: np.ndarray, end: np.ndarray, t: float) -> np.ndarray:
  return (1.0 - t) * start + t * end


def _arc(start: np.ndarray, end: np.ndarray, t: float) -> np.ndarray:
  """Interpolates spherically (Shoemake 1985): the angle to `start` is proportional to t."""
  cosine = np.dot(start, end) / (np.linalg.norm(start) * np.linalg.norm(end))
  angle = np.arccos(np.clip(cosine, -1.0, 1.0))
  if np.sin(angle) < 1e-6:  # The latents are parallel.
    return _chord(start, end, t)
  return (np.sin((1.0 - t) * angle) * start + np.sin(t * angle) * end) / np.sin(angle)
