"""Reads gin files and command-line bindings; mistakes become one line with a remedy."""

from collections.abc import Sequence

import gin

# Imported for their names in gin files, too.
from replicator.app import library_names  # noqa: F401
from replicator.configuration import checks, statements
from replicator.errors import UsageError, first_line
from replicator.optimizers import optimizer, schedules  # noqa: F401
from replicator.step import microbatch  # noqa: F401
from replicator.strategies import replicator  # noqa: F401
from replicator.training import train  # noqa: F401


def parse(files: Sequence[str], bindings: Sequence[str]) -> None:
  """Parses gin files in order, then bindings, which override them.

  A file includes another by a path relative to itself or to the working directory.

  Raises:
    UsageError: a mistake, with its file and line, and what to write; see `statements` and
      `checks`. Bindings that nothing uses are found after the first step.
  """
  gin.clear_config()
  checks.check(statements.read(files, bindings))
  try:
    gin.finalize()
  except Exception as error:  # Of a hook of the user's own.
    raise UsageError(f"the configuration is refused: {first_line(error)}") from error
