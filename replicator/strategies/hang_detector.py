"""Ends workers that wait for a worker that is stuck although its process is alive."""

import contextlib
import threading
import time
from collections.abc import Iterator

from replicator.internals import tensorflow_internals
from replicator.strategies.cluster import lost


class HangDetector:
  """A context manager that watches, in a thread, how long this worker waits for the others.

  A process that is stuck in its own code still sends heartbeats. But all workers wait the same
  number of times, so a worker that has not announced its n-th wait is the missing one. A wait
  fails after `timeout` seconds; None waits forever.
  """

  def __init__(self, cluster: lost.Cluster, worker: int, timeout: float | None):
    self._names = lost.names(cluster)
    self._worker, self._timeout = worker, timeout
    self._waits = 0
    self._since: float | None = None
    self._over = threading.Event()

  def __enter__(self) -> "HangDetector":
    if self._timeout and len(self._names) > 1:
      threading.Thread(target=self._wait, args=[self._timeout], daemon=True).start()
    return self

  def __exit__(self, *error: object) -> None:
    self._over.set()

  @contextlib.contextmanager
  def waiting(self) -> Iterator[None]:
    """Marks that this worker waits in the body; after `timeout`, its collective fails."""
    self._waits += 1
    self._since = time.monotonic()
    try:
      yield
    finally:
      self._since = None

  def _wait(self, timeout: float) -> None:
    said = 0  # The last wait that was announced to the others.
    while not self._over.wait(min(1.0, timeout / 8)):
      waits, since = self._waits, self._since
      waited = time.monotonic() - since if since else 0.0
      if waited > timeout / 2 and said < waits:
        said = waits
        tensorflow_internals.publish(_key(self._worker, waits))
      if waited > timeout:
        missing = [name for worker, name in enumerate(self._names)
                   if not tensorflow_internals.is_published(_key(worker, waits))]
        tensorflow_internals.abort_collectives(f"{lost.NEWS}{(missing or self._names)[0]}")
        return


def _key(worker: int, waits: int) -> str:
  return f"replicator/waits/{waits}/{worker}"
