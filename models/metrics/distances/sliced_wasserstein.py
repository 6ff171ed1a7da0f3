"""The sliced Wasserstein distance between the patches of real and generated images, by scale."""

from typing import NamedTuple

from replicator import UsageError

import numpy as np
import numpy.typing as npt
import scipy.ndimage

_COARSEST = 16  # Pixels of the shorter side at the coarsest scale.
_PATCH = 7
_FILTER = np.array([1, 4, 6, 4, 1], np.float32) / 16
_IMAGES = 256  # Images converted to float32 at a time.
_DIRECTIONS = 32  # Directions to project on at a time.


class SlicedWasserstein(NamedTuple):
  """The distance at each scale times 1,000, by the height of its images, and their mean."""

  mean: float
  by_height: dict[int, float]


def sliced_wasserstein_distance(real: npt.ArrayLike, generated: npt.ArrayLike, patches: int = 128,
                                directions: int = 512, seed: int = 0) -> SlicedWasserstein:
  """Compares patches of 7 x 7 pixels at each scale of a Laplacian pyramid, down to 16 pixels.

  At each scale, the patches of a set are normalized per channel to mean 0 and standard deviation 1.
  They are projected on random directions, and the distance is the mean |difference| of the sorted
  projections. It needs no features; fine scales measure texture and noise, coarse ones shape.
  Karras et al. use 16,384 images.

  Args:
    real: images, uint8 [n, h, w, c]; both sides can be halved until the shorter is 16 to 31.
    generated: equally many images of the same shape.
    patches: number of patches per image.
    directions: number of random directions.
    seed: seed of patch positions and directions.

  Reference: Karras et al. 2018 (arXiv:1710.10196), section 5.

  Raises:
    UsageError: the shapes differ, or an image cannot be halved down to 16 pixels.
  """
  real, generated = np.asarray(real), np.asarray(generated)
  if real.ndim != 4 or real.shape != generated.shape or not len(real):
    raise UsageError(f"Real images {list(real.shape)} and generated ones {list(generated.shape)}: "
                     "the sliced Wasserstein distance takes two equal shapes [n, h, w, c]")
  random = np.random.default_rng(seed)
  distances = {}
  for level in range(_num_levels(*real.shape[1:3])):
    first, second = (_descriptors(images, level, patches, random) for images in (real, generated))
    distances[real.shape[1] >> level] = 1000 * _sliced(first, second, directions, random)
  return SlicedWasserstein(float(np.mean(list(distances.values()))), distances)


def _num_levels(height: int, width: int) -> int:
  """Returns the number of scales, from full size down to 16 pixels or slightly more."""
  levels = int(np.log2(max(min(height, width), 1) / _COARSEST)) + 1
  if min(height, width) < _COARSEST or height % 2 ** (levels - 1) or width % 2 ** (levels - 1):
    raise UsageError(f"Images of {height} x {width} pixels cannot be halved down to {_COARSEST}: "
                     "the sliced Wasserstein distance takes sides such as 16, 32, 48, 64 or 128")
  return levels


def _descriptors(images: np.ndarray, level: int, patches: int,
                 random: np.random.Generator) -> np.ndarray:
  """Draws normalized patches at a scale: [n, h, w, c] -> float32 [n * patches, c * 7 * 7]."""
  found = [_patches(_laplacian(images[i:i + _IMAGES].astype(np.float32), level), patches, random)
           for i in range(0, len(images), _IMAGES)]
  values = np.concatenate(found)  # [n * patches, c, 49]
  for channel in range(values.shape[1]):
    part = values[:, channel]
    part -= part.mean(dtype=np.float64)
    part /= part.std(dtype=np.float64) or 1.0  # A channel of one value stays 0.
  return values.reshape(len(values), -1)


def _patches(images: np.ndarray, number: int, random: np.random.Generator) -> np.ndarray:
  """Draws `number` random patches of each image: [n, h, w, c] -> [n * number, c, 49]."""
  windows = np.lib.stride_tricks.sliding_window_view(images, (_PATCH, _PATCH), axis=(1, 2))
  n, rows, columns, channels = windows.shape[:4]
  at = (np.repeat(np.arange(n), number), random.integers(rows, size=n * number),
        random.integers(columns, size=n * number))
  return windows[at].reshape(-1, channels, _PATCH ** 2)


def _laplacian(images: np.ndarray, level: int) -> np.ndarray:
  """Returns a pyramid level: the difference from the next coarser one, or the coarsest itself."""
  last = _num_levels(*images.shape[1:3]) - 1
  for _ in range(level):
    images = _halved(images)
  return images if level == last else images - _doubled(_halved(images))


def _halved(images: np.ndarray) -> np.ndarray:
  return _blurred(images)[:, ::2, ::2]


def _doubled(images: np.ndarray) -> np.ndarray:
  n, height, width, channels = images.shape
  larger = np.zeros([n, 2 * height, 2 * width, channels], np.float32)
  larger[:, ::2, ::2] = 4 * images  # Keeps the mean, because three of four pixels are 0.
  return _blurred(larger)


def _blurred(images: np.ndarray) -> np.ndarray:
  for axis in (1, 2):
    images = scipy.ndimage.correlate1d(images, _FILTER, axis=axis, mode="mirror")
  return images


def _sliced(first: np.ndarray, second: np.ndarray, directions: int,
            random: np.random.Generator) -> float:
  """Returns the mean Wasserstein-1 distance of projections on random directions: [n, d], [n, d]."""
  towards = random.normal(size=[directions, first.shape[1]])
  towards = (towards / np.linalg.norm(towards, axis=1, keepdims=True)).astype(np.float32)
  total = 0.0
  for i in range(0, directions, _DIRECTIONS):
    sorted_pair = (np.sort(towards[i:i + _DIRECTIONS] @ points.T, axis=1)
                   for points in (first, second))
    total += float(np.abs(np.subtract(*sorted_pair)).mean(axis=1, dtype=np.float64).sum())
  return total / directions
