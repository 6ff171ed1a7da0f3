"""The precision of tests of GANs that compare numbers exactly."""

import gin
import keras
import pytest

from replicator import random


@pytest.fixture
def float64():
  """The test runs in float64."""
  keras.config.set_floatx("float64")
  keras.config.set_dtype_policy("float64")
  random.set_seed(0)
  yield
  keras.config.set_floatx("float32")
  keras.config.set_dtype_policy("float32")
  gin.clear_config()
