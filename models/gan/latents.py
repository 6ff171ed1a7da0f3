"""Distributions of codes, drawn from the random streams: `(stream, [n, d]) -> z [n, d]`."""

from collections.abc import Sequence

import gin
import tensorflow as tf

from replicator import random


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
