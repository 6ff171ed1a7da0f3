"""Strategies and precisions for the tests of the engine."""

import keras
import pytest
import tensorflow as tf

from replicator import Replicator

# Every synchronous strategy that one process can run, by what a gin file would say; `one_or_two`
# has the default one.
SYNCHRONOUS = [("one_device", None), ("central_storage", 2), ("mirrored", 4)]


@pytest.fixture(params=SYNCHRONOUS, ids=lambda p: f"{p[0]}-{p[1] or 1}")
def synchronous(request):
  """A new `Replicator` of every synchronous strategy in turn; the strategies are shared."""
  name, devices = request.param
  return Replicator(name, logical_cpus=devices)


@pytest.fixture(params=[("default", None), ("mirrored", 2)], ids=["one", "two"])
def one_or_two(request):
  """A new `Replicator` of one replica, then of two: where no more than their number matters."""
  name, devices = request.param
  return Replicator(name, logical_cpus=devices)


@pytest.fixture
def set_precision():
  """A function that does what `train.precision` does; undone after the test."""
  def set_to(precision: str) -> None:
    keras.config.set_floatx("float64" if precision == "float64" else "float32")
    keras.config.set_dtype_policy(precision)
  yield set_to
  set_to("float32")


@pytest.fixture
def float64(set_precision):
  """The test runs in float64, where replicas agree to rounding at any step."""
  set_precision("float64")


@pytest.fixture
def run_eagerly():
  """A function that does what `--eager` does; undone after the test."""
  yield lambda: tf.config.run_functions_eagerly(True)
  tf.config.run_functions_eagerly(False)
