"""Warnings of `absl` are in `caplog`."""

import logging

import pytest
from absl import logging as absl_logging


@pytest.fixture(autouse=True)
def absl_warnings():
  absl_logging.use_absl_handler()
  yield
  logging.getLogger().removeHandler(absl_logging.get_absl_handler())  # Which prints them, too.
