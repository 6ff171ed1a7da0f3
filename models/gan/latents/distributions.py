"""Distributions of codes, drawn from the random streams: `(stream, [n, d]) -> z [n, d]`."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from replicator import UsageError, random

import gin
import tensorflow as tf

Latents = Callable[[str, Sequence[int]], tf.Tensor]


@gin.configurable(denylist=["name", "shape"])
def normal_latents(name: str, shape: Sequence[int]) -> tf.Tensor:
  """z ~ N(0, 1) from the stream `name`, `[n, d]`; axis 0 counts the replica's examples."""
  return random.normal(name, shape)


@gin.configurable(denylist=["name", "shape"])
def truncated_normal_latents(name: str, shape: Sequence[int], truncation: float = 1.0
                             ) -> tf.Tensor:
  """z = truncation x N(0, 1) under the condition |N| <= 2; see `normal_latents`.

  BigGAN's samples use a truncation below 1 for quality against variety (Brock et al. 2019,
  arXiv:1809.11096, section 3.1).
  """
  return random.truncated_normal(name, shape, stddev=truncation)


@gin.configurable(denylist=["name", "shape"])
def uniform_latents(name: str, shape: Sequence[int]) -> tf.Tensor:
  """z ~ U(-1, 1); see `normal_latents`. LOGAN's distribution (arXiv:1912.00953)."""
  return random.uniform(name, shape, -1.0, 1.0)


def draw(gan: Any, size: int) -> tuple[tf.Tensor, tf.Tensor]:
  """Codes `[size, gan.latent_dim]` of `gan.latents`, and labels int32 `[size]`, for a step.

  Labels are uniform among `gan.num_classes` classes, and zeros if there are none.
  """
  z = gan.latents("z", [size, gan.latent_dim])
  if not gan.num_classes:
    return z, tf.zeros([size], tf.int32)
  return z, random.uniform("label", [size], 0, gan.num_classes, tf.int32)


def is_uniform(latents: Latents) -> bool:
  """Whether codes are those of `uniform_latents`, which fill a cube and not a sphere."""
  return inspect.unwrap(latents) is inspect.unwrap(uniform_latents)


def is_normal(latents: Latents) -> bool:
  """Whether codes are those of `normal_latents` or `truncated_normal_latents`."""
  normal = [inspect.unwrap(each) for each in (normal_latents, truncated_normal_latents)]
  return inspect.unwrap(latents) in normal


def truncated(latents: Latents, truncation: float) -> Latents:
  """A narrower distribution of codes: fewer different samples, and better ones, the lower it is.

  In place of normal codes, `truncated_normal_latents` draws them. Uniform codes are drawn from
  U(-truncation, truncation).

  Raises:
    UsageError: the truncation is not positive, or above 1 for uniform codes, or there is none for
      these codes.
  """
  if not truncation > 0:
    raise UsageError(f"truncation = {truncation}: must be above 0, such as 0.5")
  if is_uniform(latents):
    if truncation > 1:
      raise UsageError(f"truncation = {truncation}: the codes are uniform in [-1, 1], and the "
                       "generator has seen no others; write at most 1")
    return lambda name, shape: random.uniform(name, shape, -truncation, truncation)
  if not is_normal(latents):
    raise UsageError(f"truncation = {truncation}: is for normal and uniform codes, and these are "
                     f"of '{getattr(latents, '__name__', latents)}'; leave it out")
  return lambda name, shape: truncated_normal_latents(name, shape, truncation=truncation)
