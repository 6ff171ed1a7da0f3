"""The machines of a run, some of which may be away for a time."""

import contextlib
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

PROBE_SECONDS = 10.0
"""How often a machine that is away is asked whether it is back."""

ANSWER_SECONDS = 20.0
"""How long a machine may take to answer."""


class Machines:
  """The machines `names`, as the words `ssh` reach them; a run needs at least `least`.

  Without names, all processes are on this machine, which is always there.
  """

  def __init__(self, names: Sequence[str], ssh: str, least: int | None = None):
    self.names, self.ssh = list(names), ssh
    self.is_elastic = least is not None and least < len(names)
    self._least = least or len(names)

  def present(self, is_stopped: Callable[[], bool]) -> list[str]:
    """Those that answer; waits for at least `least`, unless `is_stopped()`."""
    if not self.is_elastic:
      return self.names
    while True:
      away = self.away(self.names)
      found = [name for name in self.names if name not in away]
      if len(found) >= self._least or is_stopped():
        return found
      time.sleep(1.0)

  def away(self, names: Sequence[str]) -> list[str]:
    """Those of an elastic run's machines that do not answer."""
    if not self.is_elastic:
      return []
    with ThreadPoolExecutor(len(names)) as pool:
      answers = list(pool.map(self._answers, names))
    return [name for name, answer in zip(names, answers, strict=True) if not answer]

  @contextlib.contextmanager
  def awaited(self, present: Sequence[str], is_back: Callable[[], None]) -> Iterator[None]:
    """In the body, calls `is_back` in another thread once a machine that is away answers."""
    away = [name for name in self.names if name not in present]
    over = threading.Event()

    def probe() -> None:
      while not over.wait(PROBE_SECONDS):
        if any(map(self._answers, away)) and not over.is_set():
          is_back()
          return

    if self.is_elastic and away:
      threading.Thread(target=probe, daemon=True).start()
    try:
      yield
    finally:
      over.set()

  def _answers(self, name: str) -> bool:
    try:
      done = subprocess.run([*shlex.split(self.ssh), name, "true"], stdin=subprocess.DEVNULL,
                            capture_output=True, timeout=ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
      return False
    return done.returncode == 0
