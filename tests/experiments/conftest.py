"""The precision of tests that compare a step with its formulas."""

import keras
import pytest


@pytest.fixture
def float64(restored):
  """The test runs in float64."""
  keras.config.set_floatx("float64")
  keras.config.set_dtype_policy("float64")
