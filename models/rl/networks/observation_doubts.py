"""Warnings about observations that a policy cannot tell apart."""

import numpy as np

_LARGE = 2 ** 20  # Smaller means leave float32 enough digits.
_FEW_STEPS = 16  # Of float32 within a standard deviation.
_ENOUGH = 100  # Observations for meaningful quartiles.
_NARROW = 1e-3  # Standard deviations between quartiles that look the same.


def doubts(dtype: np.dtype, new: np.ndarray, counted: np.ndarray, mean: np.ndarray,
           deviation: np.ndarray) -> dict[str, str]:
  """Returns warnings about elements of observations that look wrong, by kind.

  Args:
    dtype: dtype of the stored observations.
    new: float64 `[m, c]`, new observations.
    counted: the same, with outliers limited for the statistics.
    mean: float64 `[c]`, mean of all observations.
    deviation: float64 `[c]`, their standard deviation.
  """
  positive = np.where(deviation > 0, deviation, 1.0)
  distance = np.abs(new - mean)
  farthest = new[distance.argmax(0), np.arange(new.shape[1])]
  far = distance.max(0) / positive
  found = {}
  step = np.spacing(np.abs(mean).astype(np.float32))
  is_hidden = (np.abs(mean) >= _LARGE) & (deviation < _FEW_STEPS * step)
  if dtype == np.float32 and is_hidden.any():
    i = is_hidden.argmax()
    found["hidden"] = (
        f"{_which(is_hidden)} is about {mean[i]:.10g}, where float32 has steps of {step[i]:g}, so "
        "the policy does not see it change; set Environments.observation_dtype = 'float64', or "
        "add a wrapper that subtracts its initial value")
  is_outlier = (counted != new).any(0)
  if is_outlier.any():
    i = is_outlier.argmax()
    found["outlier"] = (
        f"{_which(is_outlier)} was once {farthest[i]:g}, {far[i]:.3g} standard deviations from its "
        f"mean {mean[i]:.4g}; the statistics count it as 10")
  if len(new) >= _ENOUGH:
    low, high = np.percentile(new, [25, 75], axis=0)
    width = (high - low) / positive
    is_narrow = (width > 0) & (width < _NARROW)
    if is_narrow.any():
      i = is_narrow.argmax()
      found["narrow"] = (
          f"{_which(is_narrow)} hardly changes for the policy: half of its values are within "
          f"{width[i]:.2g} standard deviations, because of outliers as far as {farthest[i]:g}; "
          "remove these with a wrapper, see Environments.wrappers")
  return found


def _which(mask: np.ndarray) -> str:
  """Names the first element of an observation in a mask `[c]`."""
  more = f" (and {mask.sum() - 1} more)" if mask.sum() > 1 else ""
  return f"observation[{mask.argmax()}]{more}"
