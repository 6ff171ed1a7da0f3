"""Each test has an environment of its own."""

import os

import pytest


@pytest.fixture(autouse=True)
def environment(monkeypatch):
  monkeypatch.setattr(os, "environ", dict(os.environ))
