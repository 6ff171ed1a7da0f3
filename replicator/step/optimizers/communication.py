"""How gradients travel between the replicas: in one vector or in buckets, and in which dtype.

A bucket holds the gradients of consecutive variables, and travels as soon as the backward pass has
computed them (Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel
Training").
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

from replicator.step import context
from replicator.step.collectives import collectives, packing, validation

import tensorflow as tf

Pieces = Sequence[Sequence[tf.Tensor]]
"""Vectors, each in pieces that `joined` joins: one piece per variable."""

Numbered = tuple[int, tf.Tensor]
"""A piece, preceded by the number of its vector."""


@dataclasses.dataclass(frozen=True)
class Communication:
  """The way in which gradients travel; see `wrap_optimizer`."""

  bucket_mb: float | None = None  # Units of 2^20 bytes.
  dtype: str | None = None

  def mean(self, pieces: Pieces) -> list[tf.Tensor]:
    """Returns the mean of each vector over the replicas: `[...] -> [...]`."""
    return self._moved(self._all_mean, pieces)

  def mean_scatter(self, pieces: Pieces) -> list[tf.Tensor]:
    """Returns this replica's part of the mean of each vector: `[replicas, n] -> [1, n]`."""
    return self._moved(self._mean_scatter, pieces)

  def _all_mean(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    if self.dtype is None:
      return collectives.all_mean(tensors)
    tensors, group = validation.checked_call("all_mean", tensors, None)
    return packing.group_sum(tensors, group, sent=self._share)

  def _mean_scatter(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    tensors, group = validation.checked_call("reduce_scatter", tensors, None)
    return packing.group_scatter([x[:, tf.newaxis] for x in tensors], group, sent=self._share)

  def _share(self, x: tf.Tensor) -> tf.Tensor:
    """Converts a gradient to this replica's summand; float64, as in a comparison, stays float64."""
    x /= context.num_replicas()  # Before the sum, which could overflow if the gradients are large.
    return (tf.cast(x, self.dtype) if self.dtype and x.dtype == tf.float32 else
            validation.as_added(x))

  def _moved(self, collective: Callable[[list[tf.Tensor]], list[tf.Tensor]], pieces: Pieces
             ) -> list[tf.Tensor]:
    """Moves vectors with a collective, which may change all axes except the last."""
    if self.bucket_mb is None:
      return collective([joined(each) for each in pieces])
    moved: list[Numbered] = []
    # The last piece of a vector is padding, which travels with the piece before it.
    numbered = [(i, x) for i, each in enumerate(pieces) for x in [*each[:-2], joined(each[-2:])]]
    # The backward pass computes the last gradients first.
    for bucket in _buckets(numbered[::-1], self.bucket_mb * 2**20):
      parts = _of_vectors(bucket[::-1])
      tensors = collective([x for _, x in parts])
      moved[:0] = [(i, x) for (i, _), x in zip(parts, tensors, strict=True)]
    return [x for _, x in _of_vectors(moved)]


def _buckets(pieces: Sequence[Numbered], least: float) -> list[list[Numbered]]:
  """Divides pieces into buckets of at least `least` bytes."""
  buckets: list[list[Numbered]] = [[]]
  size = 0
  for number, piece in pieces:
    if size >= least:
      buckets.append([])
      size = 0
    buckets[-1].append((number, piece))
    size += piece.shape.num_elements() * piece.dtype.size
  return buckets


def joined(pieces: Sequence[tf.Tensor]) -> tf.Tensor:
  """Joins pieces along their last axis; a single one stays as it is, also a scalar."""
  return pieces[0] if len(pieces) == 1 else tf.concat(pieces, -1)


def _of_vectors(pieces: Sequence[Numbered]) -> list[Numbered]:
  """Joins the consecutive pieces of each vector."""
  return [(number, joined([x for _, x in of_vector]))
          for number, of_vector in itertools.groupby(pieces, key=lambda pair: pair[0])]
