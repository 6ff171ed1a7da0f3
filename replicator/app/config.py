"""The configuration of a run: gin files and the bindings of the command line."""

from collections.abc import Sequence

# These modules are imported to register their names with gin.
from replicator.app import keras_configurables  # noqa: F401
from replicator.configuration import checks, gin_internals, statements
from replicator.console import kernel
from replicator.errors import UsageError, first_line
from replicator.step import microbatch  # noqa: F401
from replicator.step.optimizers import schedules, wrap  # noqa: F401
from replicator.strategies import replicator  # noqa: F401
from replicator.tools.trackers import services  # noqa: F401
from replicator.training import train  # noqa: F401
from replicator.training.callbacks import (  # noqa: F401
  early_stopping,
  histograms,
  profile,
)

import gin


def parse(files: Sequence[str], bindings: Sequence[str], implied: Sequence[str] = ()) -> None:
  """Parses gin files in order, then `bindings`, which override them, then `implied` bindings.

  Implied bindings were not written by the user, so they may be unused.

  Raises:
    UsageError: the configuration has a mistake; unused bindings are found after the first step.
  """
  gin.clear_config()
  try:
    checks.check(statements.read(files, bindings, implied=implied))
    _finalize()
  except BaseException:
    gin.clear_config()  # The next cell of a notebook must not see part of it.
    raise
  if kernel.is_kernel():
    gin_internals.unlock()  # A later cell may define something configurable.


def _finalize() -> None:
  try:
    gin.finalize()
  except Exception as error:  # A user's finalize hook may raise anything.
    raise UsageError(f"a finalize hook rejects the configuration: {first_line(error)}") from error
