"""The import of TensorFlow. In the programs here, another module takes its place."""

from tests.programs.processes import python

import pytest

IMPORTS = "import os, sys\nimport replicator\n"


def run(code: str, status: int = 0, **environment: str) -> str:
  """Runs a program, and returns what it wrote to the standard error."""
  done = python("-c", IMPORTS + code, status=status, **environment)
  assert done.stdout == ""
  return done.stderr


# A module that replaces TensorFlow, without its private names.
LOUD = """
import logging, os, sys, types
sys.modules["replicator.internals.first_use"] = types.SimpleNamespace(note_start=lambda: None)
os.write(2, b"I0000 00:00:1.5 1 a.cc:1] noise\\n")
class config:
  list_physical_devices = lambda: os.write(2, b"E0000 00:00:1.5 1 cuda.cc:1] no device\\n")
get_logger = lambda: logging.getLogger("tensorflow")
"""


@pytest.mark.parametrize("level", [{}, {"TF_CPP_MIN_LOG_LEVEL": "0"}])
def test_the_import_is_silent_and_keeps_the_log_level_of_the_user(level, tmp_path):
  (tmp_path / "tensorflow.py").write_text(LOUD)
  assert run("""
import tensorflow
assert sys.modules["tensorflow"]
import logging
logging.getLogger("tensorflow").warning("of Python")
os.write(2, os.environ["TF_CPP_MIN_LOG_LEVEL"].encode())
""", PYTHONPATH=str(tmp_path), **level) == level.get("TF_CPP_MIN_LOG_LEVEL", "2")


def test_an_import_that_fails_shows_all_that_was_written(tmp_path):
  (tmp_path / "tensorflow.py").write_text(LOUD + "raise ImportError('no libcuda')\n")
  err = run("import tensorflow", status=1, PYTHONPATH=str(tmp_path))
  assert err.startswith("I0000 00:00:1.5 1 a.cc:1] noise\nTraceback")
  assert err.endswith("ImportError: no libcuda\n")


def test_what_keras_can_do_without_is_left_out_but_stays_usable(tmp_path):
  for name in ("sklearn", "matplotlib", "scipy"):
    (tmp_path / f"{name}.py").write_text("loaded = True\n")
  (tmp_path / "tensorflow.py").write_text(LOUD + """
import importlib
sklearn = None
for name in ("sklearn", "matplotlib", "scipy"):
  try:
    sklearn = importlib.import_module(name)
  except ImportError:
    pass
""")
  assert run("""
import tensorflow
assert sys.modules["tensorflow"].sklearn is None and "matplotlib" not in sys.modules
import sklearn
assert sklearn.loaded
""", PYTHONPATH=str(tmp_path)) == ""
  assert run("import sklearn\nimport tensorflow\n"  # The user needs it.
             "assert sys.modules['tensorflow'].sklearn is sklearn",
             PYTHONPATH=str(tmp_path)) == ""


def test_an_experiment_is_announced_before_the_import_takes_its_time(tmp_path):
  (tmp_path / "tensorflow.py").write_text("raise SystemExit(3)")
  done = python("-m", "experiments.gan", "--gin_file=dcgan_digits.gin", "--workdir=runs/here",
                status=3, PYTHONPATH=str(tmp_path))
  assert done.stdout.splitlines()[:2] == [
      "experiment  gan, configs/dcgan_digits.gin", "workdir     runs/here"]


@pytest.mark.slow
def test_signals_leave_a_step_as_it_is():
  # Without a stack of their own, two of three such processes end with a corrupt heap (AVX-512).
  done = python("-m", "tests.programs.signaled", 12, TF_NUM_INTRAOP_THREADS="1")
  assert done.stdout == "True True\n"  # Many came, and all products were the same.
