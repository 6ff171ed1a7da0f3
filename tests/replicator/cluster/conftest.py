"""Each test begins and ends with the environment of the process."""

import os

import pytest


@pytest.fixture(autouse=True)
def environment():
  before = dict(os.environ)
  yield
  os.environ.clear()
  os.environ.update(before)
