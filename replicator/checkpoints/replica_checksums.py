"""Checksums on the devices, which show whether the replicas' copies of a variable have parted."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from replicator.collectives import collectives
from replicator.step.replicated import copies_of
from replicator.strategies.replicator import Replicator

_CHUNK = 2 ** 18  # Words of 32 bits that are summed at once, which bounds the memory it takes.

Group = tuple[str, ...]  # The paths of variables that share a checksum.


class Copies:
  """Compares all replicas' copies of variables bit for bit; no value is copied to the host.

  `variables` are given by path; those without a copy for each replica are left out. A single
  process needs no replicator.
  """

  def __init__(self, variables: dict[str, Any], replicator: Replicator | None):
    self._cluster = replicator if replicator and replicator.num_pipelines > 1 else None
    by_path = {path: copies_of(v) for path, v in variables.items()
               if isinstance(getattr(v, "values", None), tuple)}
    self._copies = {path: copies for path, copies in by_path.items()
                    if self._cluster or len(copies) > 1}
    self._groups = self._grouped()

  def parted(self) -> set[str]:
    """The paths of the variables whose copies differ. All workers must call it together."""
    groups = self._differing(self._groups)
    return {path for (path,) in self._differing([(path,) for group in groups for path in group])}

  def _grouped(self) -> list[Group]:
    """Small variables share a checksum, since a hundred calls cost more than their numbers."""
    groups: list[list[str]] = []
    open_groups: dict[tf.DType, tuple[list[str], int]] = {}
    for path, (copy, *_) in self._copies.items():
      size = copy.shape.num_elements() or _CHUNK
      group, filled = open_groups.get(copy.dtype, ([], _CHUNK))
      if filled + size > _CHUNK:
        group, filled = [], 0
        groups.append(group)
      group.append(path)
      open_groups[copy.dtype] = group, filled + size
    return [tuple(group) for group in groups]

  def _differing(self, groups: Sequence[Group]) -> list[Group]:
    if not groups:
      return []
    replicas = range(len(self._copies[groups[0][0]]))
    checksums = np.array([[self._checksum(group, r) for group in groups] for r in replicas])
    if self._cluster:
      checksums = self._cluster.run(self._gather, checksums)[0].numpy()
    differs = (checksums != checksums[0]).any(axis=0)
    return [group for group, is_different in zip(groups, differs, strict=True) if is_different]

  def _checksum(self, group: Group, replica: int) -> int:
    copies = [self._copies[path][replica] for path in group]
    with tf.device(copies[0].device):
      flat = [tf.reshape(copy.read_value(), [-1]) for copy in copies]
      whole = flat[0] if len(flat) == 1 else tf.concat(flat, 0)
      return int(_checksum_of(whole.dtype)(whole))

  def _gather(self, local: tf.Tensor) -> tf.Tensor:  # A method, so that `run` compiles it once.
    return collectives.all_concat(local)


@functools.cache
def _weights() -> np.ndarray:
  """Odd numbers without a pattern, so that neither a swap nor a change of signs cancels out."""
  return np.random.default_rng(0).integers(2 ** 63, size=_CHUNK, dtype=np.int64) | 1


@functools.cache
def _checksum_of(dtype: tf.DType) -> Callable[[tf.Tensor], tf.Tensor]:
  """A compiled function: a weighted sum of the words of a vector modulo 2^64, `[n] -> int64 []`."""
  size = 8 if dtype == tf.string else dtype.size
  chunk = 4 * _CHUNK // size

  def words_of(part: tf.Tensor) -> tf.Tensor:
    if dtype == tf.string:
      part = tf.strings.to_hash_bucket_fast(part, 2 ** 62)
    if dtype == tf.bool:
      part = tf.cast(part, tf.uint8)
    if size < 4:
      part = tf.reshape(tf.pad(part, [[0, -tf.size(part) % (4 // size)]]), [-1, 4 // size])
    # Widened at once: TensorFlow computes with int32 in the memory of the host.
    return tf.reshape(tf.cast(tf.bitcast(part, tf.int32), tf.int64), [-1])

  def checksum(x: tf.Tensor) -> tf.Tensor:
    weights = tf.constant(_weights())

    def add(first: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
      words = words_of(x[first:first + chunk])
      return first + chunk, total * 1_000_003 + tf.reduce_sum(words * weights[:tf.size(words)])

    return tf.while_loop(lambda first, _: first < tf.size(x), add,
                         [0, tf.constant(0, tf.int64)], parallel_iterations=1)[1]

  return tf.function(checksum, autograph=False, input_signature=[tf.TensorSpec([None], dtype)])
