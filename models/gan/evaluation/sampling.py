"""Samples of a trained generator: by seed and number, by class, and along paths between codes.

Image i of a seed is the same image whatever the number of images, on any number of devices: the
codes of each batch are drawn from a stream of their own, and all batches have the same size.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from models.gan.latents.distributions import Latents, is_uniform, truncated
from models.gan.networks.bigbigan import CodeDistribution
from models.metrics.images.image_sets import ImageSet, rgb
from models.vision.images.image_source import to_uint8
from replicator import Optimizer, UsageError, any_batch_size, random, use_standing_statistics
from replicator.step import context

import numpy as np
import tensorflow as tf

BATCH = 32
_NEEDED = ("latents", "latent_dim", "num_classes", "generate")


def is_gan(step: Any) -> bool:
  """Whether a step has what is called here; see `check`."""
  return all(hasattr(step, name) for name in _NEEDED)


def check(gan: Any) -> None:
  """Raises a UsageError if a step does not have what is called here.

  `gan.latents` draws codes `[n, gan.latent_dim]`. `gan.generate(z, labels)` makes images
  `[n, h, w, c]` in [-1, 1] of codes and labels: int32 `[n]` below `gan.num_classes`, or weights of
  classes, floating `[n, gan.num_classes]`; a GAN of no classes ignores them.
  """
  missing = [name for name in _NEEDED if not hasattr(gan, name)]
  if missing:
    raise UsageError(f"{type(gan).__name__} has no '{missing[0]}', so it is no GAN that can be "
                     f"sampled; a step needs {', '.join(_NEEDED)}")


def set_standing_statistics(gan: Any, passes: int, truncation: float | None = None) -> None:
  """Makes a GAN generate with batch statistics of as many passes, see `use_standing_statistics`.

  A pass has the codes of a batch, which are truncated as those to sample, see `sample`. The passes
  have all classes in turn or, of many classes, some at equal distances. Moving statistics are those
  of the weights in training, which the averaged weights do not have.

  Raises:
    UsageError: the GAN has no `generator` with an optimizer in `optimizers`, or this has no
      `GlobalBatchNorm`.
  """
  generator, optimizers = getattr(gan, "generator", None), getattr(gan, "optimizers", {})
  if generator is None or "generator" not in optimizers:
    raise UsageError(f"standing statistics: {type(gan).__name__} has no 'generator' with an "
                     "optimizer of this name in 'optimizers'; leave them out")
  latents = _latents(gan, truncation)
  labels = _spread(max(gan.num_classes, 1), passes)

  def forward(i: int) -> None:
    generator(_codes(latents, gan.latent_dim, 0, i), tf.constant(labels[i]), training=True)

  def generate(z: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    with contextlib.ExitStack() as stack:
      with tf.init_scope():  # They are computed once, and not in each call.
        stack.enter_context(optimizers["generator"].averaged_weights())
        stack.enter_context(use_standing_statistics(generator, forward, passes))
      return generator(z, labels, training=False)

  gan.generate = any_batch_size(generate)


def _latents(gan: Any, truncation: float | None) -> Latents:
  """The distribution of codes: that of the training, or truncated."""
  return gan.latents if truncation is None else truncated(gan.latents, truncation)


def _spread(num_classes: int, passes: int) -> np.ndarray:
  """Labels int32 `[passes, BATCH]`: all classes in turn, or each pass has some of many."""
  number = np.arange(BATCH * passes, dtype=np.int32)
  if len(number) >= num_classes:
    return (number % num_classes).reshape(passes, BATCH)
  return (number * num_classes // len(number)).reshape(BATCH, passes).T


def check_classes(gan: Any, classes: Sequence[int]) -> None:
  """Raises a UsageError if a GAN does not have these classes."""
  if classes and not gan.num_classes:
    raise UsageError(f"classes {', '.join(map(str, classes))}: the GAN was trained without "
                     "classes; leave them out")
  unknown = [each for each in classes if not 0 <= each < gan.num_classes]
  if unknown:
    raise UsageError(f"class {unknown[0]}: the GAN has the classes 0 to {gan.num_classes - 1}")


def sample(gan: Any, count: int, seed: int = 0, classes: Sequence[int] = (),
           truncation: float | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields samples in batches: uint8 images `[n, h, w, c]` and their labels, int32 `[n]`.

  Args:
    gan: what `check` accepts.
    count: how many images.
    seed: chooses the codes. Image i depends on it and on i, not on `count`.
    classes: those of the images, in turn; by default all.
    truncation: see `latents.truncated`; None for the codes of the training.

  Raises:
    UsageError: a class or the truncation is none for this GAN, or an image is not finite.
  """
  check_classes(gan, classes)
  latents = _latents(gan, truncation)
  turns = np.asarray(classes or range(max(gan.num_classes, 1)), np.int32)
  for first in range(0, count, BATCH):
    z = _codes(latents, gan.latent_dim, seed, first // BATCH)
    labels = turns[np.arange(first, first + BATCH) % len(turns)]
    wanted = min(BATCH, count - first)
    yield _images(gan, z, labels)[:wanted], labels[:wanted]


def interpolate(gan: Any, count: int, seeds: Sequence[int], classes: Sequence[int] = (),
                truncation: float | None = None) -> np.ndarray:
  """Images on a path through codes, or through classes, or both: uint8 `[count, h, w, c]`.

  Between normal codes the path is an arc (White 2016, arXiv:1609.04468): their lengths hardly
  differ, and those of a chord would. Between uniform codes it is a chord, because an arc would
  leave their cube. Between classes it is a chord between the rows that the generator looks up.

  Args:
    gan: what `check` accepts.
    count: how many images, the first and the last included.
    seeds: the path leads through the first code of each.
    classes: the class of each code, if there are several of both; several classes of one code, or
      the one class of all codes, by default 0.
    truncation: as for `sample`.

  Raises:
    UsageError: as for `sample`, or the path has no two different ends.
  """
  check_classes(gan, classes)
  stops = max(len(seeds), len(classes))
  if stops < 2 or {len(seeds), len(classes)} - {0, 1, stops}:
    raise UsageError(f"no path through {len(seeds)} seeds and {len(classes)} classes: write "
                     "several seeds, several classes, or as many of both")
  latents = _latents(gan, truncation)
  codes = np.stack([_codes(latents, gan.latent_dim, seed, 0)[0] for seed in seeds])
  between = _chord if is_uniform(gan.latents) else _arc
  positions = np.linspace(0.0, stops - 1.0, count)
  z = _path(codes, positions, between).astype(codes.dtype)
  rows = np.eye(max(gan.num_classes, 1))[list(classes) or [0]]
  weights = _path(rows, positions, _chord).astype(codes.dtype)
  labels = weights if gan.num_classes else np.zeros([count], np.int32)
  return _in_batches(gan, z, labels)


def reconstruct(gan: Any, images: np.ndarray, classes: Sequence[int] = ()) -> np.ndarray:
  """Images decoded from what the encoder makes of them: uint8 `[n, h, w, c]` -> the same.

  `classes` are those of the images, in turn.

  Raises:
    UsageError: the GAN has no encoder, or has classes, and none are given.
  """
  if not hasattr(gan, "reconstruct"):
    raise UsageError(f"{type(gan).__name__} cannot reconstruct images; a class that has an encoder "
                     "takes `reconstruct = models.gan.gans.reconstruct`")
  check_classes(gan, classes)
  if gan.num_classes and not classes:
    raise UsageError("the generator needs the classes of the images: write one class of all, or "
                     "those of the images, in turn")
  labels = np.resize(np.asarray(classes or [0], np.int32), len(images))
  return np.concatenate([
      _checked(gan.reconstruct(tf.constant(images[i:i + BATCH]), tf.constant(labels[i:i + BATCH])))
      for i in range(0, len(images), BATCH)])


def optimizer_of(gan: Any, network: str) -> Optimizer | None:
  """The optimizer of the network's name in `optimizers`; None if the step has none of this name."""
  optimizers = getattr(gan, "optimizers", None)
  return optimizers.get(network) if isinstance(optimizers, Mapping) else None


def encode(gan: Any, images: tf.Tensor) -> tf.Tensor:
  """Codes of the averaged encoder, or their means: `[n, h, w, c] -> [n, latent_dim]`."""
  optimizer = optimizer_of(gan, "encoder")
  with optimizer.averaged_weights() if optimizer else contextlib.nullcontext():
    codes = gan.encoder(images, training=False)
  return codes.mean if isinstance(codes, CodeDistribution) else codes


def image_shape(gan: Any) -> tuple[int, int, int]:
  """(height, width, channels) of the images that a GAN makes."""
  images, _ = next(sample(gan, 1))
  return images.shape[1:]


class SampleSet(ImageSet):
  """The first samples of a seed as an `ImageSet`, without the names of classes."""

  def __init__(self, name: str, gan: Any, size: int, seed: int) -> None:
    """Takes the first `size` samples of a GAN that `check` accepts."""
    super().__init__(name, size, image_shape(gan)[:2])
    self._gan = gan
    self._seed = seed

  def batches(self, indices: np.ndarray) -> Iterator[np.ndarray]:
    """RGB images, uint8 [n, h, w, 3], at ascending indices; all before the last are generated."""
    first = 0
    for images, _ in sample(self._gan, int(indices[-1]) + 1, self._seed):
      chosen = indices[(indices >= first) & (indices < first + len(images))] - first
      first += len(images)
      if len(chosen):
        yield rgb(images[chosen])

  def labels(self, indices: np.ndarray) -> np.ndarray | None:
    """The classes of the images at indices, int [n], which take turns; None without classes."""
    return indices % self._gan.num_classes if self._gan.num_classes else None


def _codes(latents: Latents, latent_dim: int, seed: int, batch: int) -> np.ndarray:
  """The codes of batch number `batch`, `[BATCH, latent_dim]`."""
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
    raise UsageError("the images are not finite: the training diverged; write an earlier step")
  return to_uint8(images).numpy()


def _path(stops: np.ndarray, positions: np.ndarray, between: Any) -> np.ndarray:
  """The points `[n, d]` at positions [n] in [0, stops - 1] of a path through `stops [k, d]`."""
  if len(stops) == 1:
    return np.repeat(stops, len(positions), 0)
  firsts = np.minimum(positions.astype(int), len(stops) - 2)
  return np.stack([between(stops[first].astype(np.float64), stops[first + 1].astype(np.float64),
                           position - first)
                   for first, position in zip(firsts, positions, strict=True)])


def _chord(start: np.ndarray, end: np.ndarray, t: float) -> np.ndarray:
  return (1.0 - t) * start + t * end


def _arc(start: np.ndarray, end: np.ndarray, t: float) -> np.ndarray:
  """Spherical interpolation (Shoemake 1985): the angle to `start` grows evenly."""
  cosine = np.dot(start, end) / (np.linalg.norm(start) * np.linalg.norm(end))
  angle = np.arccos(np.clip(cosine, -1.0, 1.0))
  if np.sin(angle) < 1e-6:  # The codes are parallel.
    return _chord(start, end, t)
  return (np.sin((1.0 - t) * angle) * start + np.sin(t * angle) * end) / np.sin(angle)
