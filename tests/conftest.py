"""Every test process has eight logical CPU devices, so that no strategy test needs to skip."""

import gc
import os
import sys
import types

import replicator  # noqa: F401  (before TensorFlow, so that it is quiet)

import pytest

NUM_DEVICES = 8
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # A folder's conftest may import it first.
# A GPU computes float32 in another precision, and the first process would take all of its memory.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")


def pytest_configure(config):
  if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
    return  # The process that distributes the tests runs none, and needs no TensorFlow.
  import tensorflow as tf
  cpu = tf.config.list_physical_devices("CPU")[0]
  devices = [tf.config.LogicalDeviceConfiguration() for _ in range(NUM_DEVICES)]
  tf.config.set_logical_device_configuration(cpu, devices)
  assert len(tf.config.list_logical_devices("CPU")) == NUM_DEVICES


def pytest_ignore_collect(collection_path, config):
  """Where only slow tests run, a file that has none need not be imported."""
  if config.option.markexpr == "slow" and collection_path.suffix == ".py":
    return "mark.slow" not in collection_path.read_text() or None


def pytest_collection_modifyitems(items):
  """Begins with what is marked so: a test of minutes at the end would leave the other core idle."""
  items.sort(key=lambda item: item.get_closest_marker("first") is None)


def pytest_collection_finish():
  """Exempts all modules and tests from garbage collection, which Keras and the doctor often run."""
  gc.collect()
  gc.freeze()


@pytest.fixture(autouse=True)
def restored():
  """Every test begins with seed 0, and without what `train`, `load` and gin files set before."""
  from replicator import random
  from replicator.step import context

  import gin
  import keras
  import tensorflow as tf
  random.set_seed(0)
  yield
  random.set_seed(0)  # For what several tests share, too.
  gin.clear_config()
  keras.config.set_floatx("float32")
  keras.config.set_dtype_policy("float32")
  tf.config.run_functions_eagerly(False)
  context.run.is_loaded = context.run.is_program = False
  context.run.outside.step = 0


@pytest.fixture
def set_precision():
  """A function that does what `train.precision` does."""
  import keras

  def set_to(precision: str) -> None:
    keras.config.set_floatx("float64" if precision == "float64" else "float32")
    keras.config.set_dtype_policy(precision)
  return set_to


@pytest.fixture
def float64(set_precision):
  """The test runs in float64, where replicas agree to rounding at any step."""
  set_precision("float64")


@pytest.fixture
def without_curves(monkeypatch):
  """Pages have no curves."""
  from replicator.training.workdir import charts
  monkeypatch.setattr(charts, "curves", lambda *arguments: "<svg></svg>")


@pytest.fixture(scope="session", autouse=True)
def reports_without_curves():
  """Reports of trainings have no curves. To draw them would take longer than a tiny training."""
  from replicator.training.callbacks import report
  from replicator.training.workdir import charts
  write_report = report.write_report

  def write(workdir):
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(charts, "curves", lambda *arguments: "<svg></svg>")
      return write_report(workdir)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(report, "write_report", write)
    yield


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
