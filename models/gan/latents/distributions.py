"""Latent distributions, `(stream, [n, d]) -> z [n, d]`, and labels for samples."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from models.vision.images.classes import NO_CLASSES, Classes
from models.vision.images.image_source import classes_of
from replicator import UsageError, random

import gin
import numpy as np
import tensorflow as tf

Latents = Callable[[str, Sequence[int]], tf.Tensor]


@gin.configurable(denylist=["name", "shape"])
def normal_latents(name: str, shape: Sequence[int]) -> tf.Tensor:
  """Draws z ~ N(0, 1) from the stream `name`, `[n, d]`; n is the replica's number of examples."""
  return random.normal(name, shape)


@gin.configurable(denylist=["name", "shape"])
def truncated_normal_latents(name: str, shape: Sequence[int], truncation: float = 1.0
                             ) -> tf.Tensor:
  """Draws z ~ truncation x N(0, 1), cut off at 2 standard deviations; see `normal_latents`.

  BigGAN uses a truncation below 1 to trade variety for quality (Brock et al. 2019,
  arXiv:1809.11096, section 3.1).
  """
  return random.truncated_normal(name, shape, stddev=truncation)


@gin.configurable(denylist=["name", "shape"])
def uniform_latents(name: str, shape: Sequence[int]) -> tf.Tensor:
  """Draws z ~ U(-1, 1), LOGAN's distribution (arXiv:1912.00953); see `normal_latents`."""
  return random.uniform(name, shape, -1.0, 1.0)


def draw(gan: Any, size: int) -> tuple[tf.Tensor, tf.Tensor]:
  """Draws latents `[size, gan.latent_dim]` and labels int32 `[size]` for a step.

  Labels follow the class frequencies of the data, `gan.classes`, as in StyleGAN2-ADA (Karras et al.
  2020, arXiv:2006.06676). Without `gan.classes`, `gan.num_classes` classes are equally likely.
  Unconditional steps get zeros.
  """
  z = gan.latents("z", [size, gan.latent_dim])
  classes = classes_of_gan(gan)
  if not classes:
    return z, tf.zeros([size], tf.int32)
  counts = np.array(classes.counts, np.int64)
  ends = np.cumsum(counts // np.gcd.reduce(counts))
  dtype = tf.int32 if ends[-1] < 2 ** 31 else tf.int64
  example = random.uniform("label", [size], 0, int(ends[-1]), dtype)
  return z, tf.searchsorted(tf.constant(ends, dtype), example, side="right")


def classes_of_gan(gan: Any, data: Any = None) -> Classes:
  """Returns the classes of a conditional GAN; none for other GANs.

  These are the classes of the source `data`, or else `gan.classes`: the first of the two that has
  `gan.num_classes` classes. If neither does, the classes are numbered.
  """
  if not gan.num_classes:
    return NO_CLASSES
  found = [*([classes_of(data)] if hasattr(data, "class_names") else []),
           getattr(gan, "classes", NO_CLASSES), Classes.numbered(gan.num_classes)]
  return next(each for each in found if len(each) == gan.num_classes)


def is_uniform(latents: Latents) -> bool:
  """Returns whether latents come from `uniform_latents`, which fill a cube, not a sphere."""
  return inspect.unwrap(latents) is inspect.unwrap(uniform_latents)


def is_normal(latents: Latents) -> bool:
  """Returns whether latents come from `normal_latents` or `truncated_normal_latents`."""
  normal = [inspect.unwrap(each) for each in (normal_latents, truncated_normal_latents)]
  return inspect.unwrap(latents) in normal


def truncated(latents: Latents, truncation: float) -> Latents:
  """Returns a narrower latent distribution: a lower truncation gives better, less varied samples.

  Normal latents are replaced by `truncated_normal_latents`, uniform ones by U(-truncation,
  truncation).

  Raises:
    UsageError: the truncation is not positive, or above 1 for uniform latents, or the latents are
      neither normal nor uniform.
  """
  if not truncation > 0:
    raise UsageError(f"truncation = {truncation}: must be above 0, such as 0.5")
  if is_uniform(latents):
    if truncation > 1:
      raise UsageError(f"truncation = {truncation}: the generator was trained on latents uniform "
                       "in [-1, 1]; use at most 1")
    return lambda name, shape: random.uniform(name, shape, -truncation, truncation)
  if not is_normal(latents):
    raise UsageError(f"truncation = {truncation}: needs normal or uniform latents, and these come "
                     f"from '{getattr(latents, '__name__', latents)}'; leave it out")
  return lambda name, shape: truncated_normal_latents(name, shape, truncation=truncation)
