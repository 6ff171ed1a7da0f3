"""Where the tests of gin files run."""

import gin
import pytest


@pytest.fixture
def in_a_folder_of_its_own(tmp_path, monkeypatch):
  """The working directory is new, and gin is cleared after the test."""
  monkeypatch.chdir(tmp_path)
  yield
  gin.clear_config()
