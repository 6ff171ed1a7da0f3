"""Collects log records, for commands that show warnings in their own way."""

import contextlib
import logging
from collections.abc import Iterator

from absl import logging as absl_logging


@contextlib.contextmanager
def collected() -> Iterator[list[logging.LogRecord]]:
  """Collects warnings and errors that are logged in the body, instead of writing them."""
  records: list[logging.LogRecord] = []
  logger, collector = absl_logging.get_absl_logger(), logging.Handler(logging.WARNING)
  collector.emit = lambda record: records.append(record)  # type: ignore[method-assign]
  propagate, logger.propagate = logger.propagate, False
  logger.addHandler(collector)
  try:
    yield records
  finally:
    logger.removeHandler(collector)
    logger.propagate = propagate
