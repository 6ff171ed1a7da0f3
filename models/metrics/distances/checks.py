"""Checks of the features passed to metrics."""

from replicator import UsageError

import numpy as np
import numpy.typing as npt


def checked(features: npt.ArrayLike, whose: str, at_least: int = 1,
            needed_for: str = "a metric") -> np.ndarray:
  """Checks features `[n, d]`, one row per image, and returns them as an array.

  For messages, `whose` is "real" or "generated", and `needed_for` says why n must be `at_least`.

  Raises:
    UsageError: they have the wrong shape, too few rows, or a number that is not finite.
  """
  array = np.asarray(features)
  if array.ndim != 2 or array.shape[1] == 0:
    raise UsageError(f"The {whose} features have the shape {list(array.shape)}: a metric takes "
                     "[n, d], one row for each image")
  if len(array) < at_least:
    raise UsageError(f"There are {len(array):,} {whose} samples, but {needed_for} needs "
                     f"{at_least:,}: use more samples")
  broken = np.flatnonzero(~np.isfinite(array).all(axis=1))
  if len(broken):
    raise UsageError(f"The {whose} features are NaN or infinite in {len(broken):,} of "
                     f"{len(array):,} rows, first in row {broken[0]}: look at that image, and at "
                     "the weights of the extractor")
  return array


def checked_pair(real: npt.ArrayLike, generated: npt.ArrayLike, at_least: int = 1,
                 needed_for: str = "a metric") -> tuple[np.ndarray, np.ndarray]:
  """Checks real features `[n, d]` and generated ones `[m, d]`, see `checked`; returns both.

  Raises:
    UsageError: `checked` rejects one, or their dimensions differ.
  """
  pair = (checked(real, "real", at_least, needed_for),
          checked(generated, "generated", at_least, needed_for))
  same_dimensions(pair[0].shape[1], pair[1].shape[1])
  return pair


def same_dimensions(real: int, generated: int) -> None:
  """Raises a UsageError if real and generated features differ in their number of dimensions."""
  if real != generated:
    raise UsageError(f"The real features have {real:,} dimensions and the generated ones "
                     f"{generated:,}: use the same extractor for both")
