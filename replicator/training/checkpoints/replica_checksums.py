"""Checksums, computed on the devices, that show whether replicas' copies of a variable differ."""

import collections
import functools
from collections.abc import Callable, Mapping
from typing import Any

from replicator.step.replicated import copies_of
from replicator.strategies.replicator import Replicator

import numpy as np
import tensorflow as tf

_CHUNK = 2 ** 17  # The number of elements to sum at once, which bounds the memory.


def parted(variables: Mapping[str, Any], cluster: Replicator | None = None) -> list[str]:
  """Returns the paths of variables whose copies on the replicas are not equal bit for bit.

  Variables without a copy for each replica are skipped. No value is copied to the host. All workers
  of a `cluster` must call it together.
  """
  copies = {path: copies_of(v) for path, v in variables.items()
            if isinstance(getattr(v, "values", None), tuple)}
  if not cluster and all(len(found) == 1 for found in copies.values()):
    return []
  groups = _differing(_grouped(copies), copies, cluster)
  single = _differing([[path] for group in groups for path in group], copies, cluster)
  return [path for (path,) in single]


def checksums(variables: Mapping[str, Any]) -> dict[str, list[int]]:
  """Returns a checksum of each copy in this process, by path; copies no values to the host."""
  return {path: [_checksum((copy,)) for copy in copies_of(variable)]
          for path, variable in variables.items()}


def _grouped(copies: Mapping[str, list[Any]]) -> list[list[str]]:
  """Groups small variables under one checksum: a hundred calls cost more than the sums."""
  groups = collections.defaultdict(list)
  filled = collections.Counter[tf.DType]()
  for path, (copy, *_) in copies.items():
    size = copy.shape.num_elements() or 0
    groups[copy.dtype, path if size > _CHUNK else filled[copy.dtype] // _CHUNK].append(path)
    filled[copy.dtype] += size
  return list(groups.values())


def _differing(groups: list[list[str]], copies: Mapping[str, list[Any]],
               cluster: Replicator | None) -> list[list[str]]:
  """Returns the groups whose variables differ between replicas."""
  if not groups:
    return []
  checksums = np.array([[_checksum(of_replica) for of_replica in zip(
      *(copies[path] for path in group), strict=True)] for group in groups]).T
  if cluster:
    checksums = cluster.joined(checksums)
  differs = (checksums != checksums[0]).any(axis=0)
  return [group for group, is_different in zip(groups, differs, strict=True) if is_different]


def _checksum(variables: tuple[tf.Variable, ...]) -> int:
  """Returns a weighted sum of the words of variables of one dtype, modulo 2^63."""
  checksum = 0
  with tf.device(variables[0].device):
    flat = [tf.reshape(variable.read_value(), [-1]) for variable in variables]
    whole = flat[0] if len(flat) == 1 else tf.concat(flat, 0)
    for first in range(0, len(whole), _CHUNK):
      part = _sum_of(whole.dtype)(whole[first:first + _CHUNK])
      checksum = (checksum * 1_000_003 + int(part)) % 2 ** 63
  return checksum


@functools.cache
def _sum_of(dtype: tf.DType) -> Callable[[tf.Tensor], tf.Tensor]:
  """Compiles the weighted sum of the words of a vector, `[n] -> int64 []`."""
  # Random odd numbers, so that neither a swap nor a change of signs cancels out. They are captured
  # by the graph, because a graph with such a large constant would take long to optimize.
  with tf.device("CPU"):
    weights = tf.constant(
        np.random.default_rng(0).integers(2 ** 63, size=4 * _CHUNK, dtype=np.int64) | 1)

  def weighted_sum(x: tf.Tensor) -> tf.Tensor:
    if dtype == tf.string:
      x = tf.strings.to_hash_bucket_fast(x, 2 ** 62)
    if dtype == tf.bool:
      x = tf.cast(x, tf.uint8)
    if x.dtype.size < 4:
      in_word = 4 // x.dtype.size
      x = tf.reshape(tf.pad(x, [[0, -tf.size(x) % in_word]]), [-1, in_word])
    # Widen right away: TensorFlow computes on int32 in host memory.
    words = tf.reshape(tf.cast(tf.bitcast(x, tf.int32), tf.int64), [-1])
    return tf.reduce_sum(words * weights[:tf.size(words)])

  return tf.function(weighted_sum, autograph=False, input_signature=[tf.TensorSpec([None], dtype)])
