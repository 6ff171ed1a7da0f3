"""Warnings of `absl` are in `caplog`."""

import pytest
from absl import logging


@pytest.fixture(autouse=True)
def absl_warnings():
  logging.use_absl_handler()
