"""How close arrays must be."""

import numpy as np
import tree


def close(actual, expected, rtol, name=""):
  """Relative to the largest expected value: a gradient near zero is a difference of large ones."""
  expected = np.asarray(expected, np.float64)
  np.testing.assert_allclose(actual, expected, rtol=0, atol=rtol * np.abs(expected).max(),
                             err_msg=name)


def nests_close(actual, expected, rtol, atol=0.0):
  """All arrays of two nests, one by one; lists and tuples are alike."""
  tree.map_structure(lambda x, y: np.testing.assert_allclose(x, y, rtol, atol), actual, expected,
                     check_types=False)
