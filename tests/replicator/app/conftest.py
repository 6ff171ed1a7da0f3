"""Where the tests of gin files run, and an experiment that runs in this process."""

import sys

from replicator import app
from replicator.app import start
from tests.programs import two_networks

import pytest


@pytest.fixture
def programs_forgotten():
  """The programs `load_test...` that a test imports, and their folders, are forgotten after it."""
  path = list(sys.path)
  yield
  sys.path[:] = path
  for name in [name for name in sys.modules if name.startswith("load_test_")]:
    del sys.modules[name]


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
  """A function: runs `main` with some flags; returns status, stdout and stderr."""
  monkeypatch.setattr(start, "begin", lambda *given: None)  # The first lines have their own tests.
  monkeypatch.chdir(tmp_path)
  monkeypatch.delenv("TF_CONFIG", raising=False)

  def run(argv: list[str], main=two_networks.two_networks):
    with pytest.raises(SystemExit) as ended:
      app.run(main, argv)
    out, err = capsys.readouterr()
    return ended.value.code, out, err

  return run
