"""How close arrays must be."""

import numpy as np


def close(actual, expected, rtol, name=""):
  """Relative to the largest expected value: a gradient near zero is a difference of large ones."""
  expected = np.asarray(expected, np.float64)
  np.testing.assert_allclose(actual, expected, rtol=0, atol=rtol * np.abs(expected).max(),
                             err_msg=name)
