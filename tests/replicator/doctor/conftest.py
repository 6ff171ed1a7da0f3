"""The settings of the doctor in this process."""

import pytest


@pytest.fixture
def restored(restored, monkeypatch):
  """Undoes the choice of devices too, which the doctor makes for the whole process."""
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
