"""Every test process has eight logical CPU devices, so that no strategy test needs to skip."""

from replicator.console import quiet

quiet.import_tensorflow()

import gc  # noqa: E402
import sys  # noqa: E402
import types  # noqa: E402

import gin  # noqa: E402
import keras  # noqa: E402
import pytest  # noqa: E402

from replicator import random  # noqa: E402
from replicator.step import context  # noqa: E402
from replicator.workdir import charts  # noqa: E402

NUM_DEVICES = 8


def pytest_configure(config):
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
  random.set_seed(0)
  yield
  random.set_seed(0)


@pytest.fixture
def without_curves(monkeypatch):
  """Reports have no curves. To draw them would take longer than a tiny training."""
  monkeypatch.setattr(charts, "curves", lambda *arguments: "<svg></svg>")


@pytest.fixture
def restored():
  """The settings of `train`, `load` and gin files for a process are undone after the test."""
  yield
  gin.clear_config()
  keras.config.set_floatx("float32")
  keras.config.set_dtype_policy("float32")
  context.run.is_loaded = False


@pytest.fixture
def notebook(monkeypatch):
  """This process is the kernel of a notebook; the versions of each place in the output, as HTML."""
  places: list[list[str]] = []

  class ZMQInteractiveShell:
    pass

  class Handle:
    def __init__(self, content: dict[str, str]):
      self.versions = [content["text/html"]]
      places.append(self.versions)

    def update(self, content: dict[str, str], raw: bool):
      self.versions.append(content["text/html"])

  ipython, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
  ipython.get_ipython = ZMQInteractiveShell
  display.display = lambda content, raw, display_id: Handle(content)
  monkeypatch.setitem(sys.modules, "IPython", ipython)
  monkeypatch.setitem(sys.modules, "IPython.display", display)
  return places
