"""Images that are there more than once: the same content, or the same look."""

import numpy as np

_MOST_BITS = 10      # The bits, of 64, in which the hashes of images that look the same differ.
_CORRELATION = 0.97  # Between the thumbnails of images that look the same.
_LEAST_SPREAD = 4.0  # Standard deviation, in levels, of a thumbnail that shows something.
_AHEAD = 4           # How many of those that follow in the order of the hashes are compared.


def equal(digests: np.ndarray) -> list[np.ndarray]:
  """The positions with equal digests: `V16 [n] -> int [2 or more]` for each group of those."""
  _, inverse, counts = np.unique(digests, return_inverse=True, return_counts=True)
  order = np.argsort(inverse, kind="stable")
  ends = np.cumsum(counts)
  groups = [order[ends[i] - counts[i]:ends[i]] for i in np.flatnonzero(counts > 1)]
  return sorted(groups, key=lambda group: (-len(group), group[0]))


def similar(thumbnails: np.ndarray, positions: np.ndarray) -> np.ndarray:
  """The pairs among `positions` whose thumbnails look the same.

  Candidates are near each other in the order of their difference hashes, rotated by 0, 8, 16, ...
  bits, as in Manku et al. 2007 (WWW, "Detecting near-duplicates for web crawling"): the time grows
  as n log n, and a few pairs are missed. The correlation of the thumbnails decides.

  Args:
    thumbnails: luminance, uint8 `[n, 8, 9]`.
    positions: int [m], those to compare.

  Returns:
    int [pairs, 2], ascending in each pair, the most alike first.
  """
  levels = thumbnails[positions].reshape(len(positions), 72).astype(np.float32)
  levels -= levels.mean(1, keepdims=True)
  spread = levels.std(1)
  kept = spread >= _LEAST_SPREAD
  positions, levels = positions[kept], levels[kept] / spread[kept, None]
  hashes = _hashes(thumbnails[positions])
  found: dict[tuple[int, int], float] = {}
  for turn in range(0, 64, 8):
    order = np.argsort(hashes << np.uint64(turn) | hashes >> np.uint64(64 - turn) if turn
                       else hashes)
    for ahead in range(1, _AHEAD + 1):
      first, second = order[:-ahead], order[ahead:]
      near = _num_bits(hashes[first] ^ hashes[second]) <= _MOST_BITS
      first, second = first[near], second[near]
      alike = (levels[first] * levels[second]).mean(1)
      for i in np.flatnonzero(alike >= _CORRELATION):
        pair = sorted((int(positions[first[i]]), int(positions[second[i]])))
        found[pair[0], pair[1]] = float(alike[i])
  pairs = sorted(found, key=lambda pair: (-found[pair], pair))
  return np.array(pairs, np.int64).reshape(-1, 2)


def _hashes(thumbnails: np.ndarray) -> np.ndarray:
  """Whether each pixel is lighter than the one on its left: `[n, 8, 9]` -> 64 bits, uint64 [n]."""
  bits = (thumbnails[:, :, 1:] > thumbnails[:, :, :-1]).reshape(len(thumbnails), 64)
  return np.packbits(bits, axis=1).view(np.uint64)[:, 0]


def _num_bits(words: np.ndarray) -> np.ndarray:
  """How many bits are set: uint64 [n] -> int [n]."""
  return np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1).sum(1)
