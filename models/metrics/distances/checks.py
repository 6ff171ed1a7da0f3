"""Which features a metric refuses, in one line each."""

from replicator import UsageError

import numpy as np
import numpy.typing as npt


def checked(features: npt.ArrayLike, whose: str, at_least: int = 1,
            needed_for: str = "a metric") -> np.ndarray:
  """Features `[n, d]`, one row for each image, as an array, if a metric can be computed from them.

  The message says `whose` they are, "real" or "generated", and what n `at_least` is `needed_for`.

  Raises:
    UsageError: they have another shape, too few rows, or a number that is not finite.
  """
  array = np.asarray(features)
  if array.ndim != 2 or array.shape[1] == 0:
    raise UsageError(f"The {whose} features have the shape {list(array.shape)}: a metric takes "
                     "[n, d], one row for each image")
  if len(array) < at_least:
    raise UsageError(f"There are {len(array):,} {whose} samples, and {needed_for} needs "
                     f"{at_least:,}: take more samples")
  broken = np.flatnonzero(~np.isfinite(array).all(axis=1))
  if len(broken):
    raise UsageError(f"The {whose} features are NaN or infinite in {len(broken):,} of "
                     f"{len(array):,} rows, first in row {broken[0]}: look at that image, and at "
                     "the weights of the extractor")
  return array


def checked_pair(real: npt.ArrayLike, generated: npt.ArrayLike, at_least: int = 1,
                 needed_for: str = "a metric") -> tuple[np.ndarray, np.ndarray]:
  """Real features `[n, d]` and generated ones `[m, d]`, both `checked`.

  Raises:
    UsageError: `checked` refuses one, or their dimensions differ.
  """
  pair = (checked(real, "real", at_least, needed_for),
          checked(generated, "generated", at_least, needed_for))
  same_dimensions(pair[0].shape[1], pair[1].shape[1])
  return pair


def same_dimensions(real: int, generated: int) -> None:
  """Raises UsageError when real and generated features differ in their number of dimensions."""
  if real != generated:
    raise UsageError(f"The real features have {real:,} dimensions and the generated ones "
                     f"{generated:,}: take both from the same extractor")
