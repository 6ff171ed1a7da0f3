"""Every test process has eight logical CPU devices, so that no strategy test needs to skip."""

import gc

import pytest

from replicator.console import quiet

NUM_DEVICES = 8


def pytest_configure(config):
  if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
    return  # The process that distributes the tests runs none, and needs no TensorFlow.
  quiet.import_tensorflow()
  import tensorflow as tf
  cpu = tf.config.list_physical_devices("CPU")[0]
  devices = [tf.config.LogicalDeviceConfiguration() for _ in range(NUM_DEVICES)]
  tf.config.set_logical_device_configuration(cpu, devices)
  assert len(tf.config.list_logical_devices("CPU")) == NUM_DEVICES


def pytest_collection_finish():
  """Exempts all modules and tests from garbage collection, which Keras and the doctor often run."""
  gc.collect()
  gc.freeze()


@pytest.fixture(autouse=True)
def seed_of_the_process():
  """Every test, and what several tests share, begins with seed 0, whatever ran before."""
  from replicator import random
  random.set_seed(0)
  yield
  random.set_seed(0)


@pytest.fixture
def without_curves(monkeypatch):
  """Reports have no curves. To draw them would take longer than a tiny training."""
  from replicator.workdir import charts
  monkeypatch.setattr(charts, "curves", lambda *arguments: "<svg></svg>")


@pytest.fixture
def restored():
  """The settings of `train`, `load` and gin files for a process are undone after the test."""
  import gin
  import keras

  from replicator.step import context
  yield
  gin.clear_config()
  keras.config.set_floatx("float32")
  keras.config.set_dtype_policy("float32")
  context.run.is_loaded = False
