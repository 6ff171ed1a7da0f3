"""Places processes on this machine, or on machines reached by ssh, which may be away at times."""

import contextlib
import functools
import itertools
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from replicator.tools.launch.placement import AS_TEXT, PipedChild, Slot, free_ports, say
from replicator.tools.launch.remote import RemoteChild

PROBE_SECONDS = 10.0  # Between checks whether a machine is back.
_NOTICE_SECONDS = 60.0  # Between messages about missing machines.
_ANSWER_SECONDS = 20.0  # How long a machine may take to answer.


class Machines:
  """A `Placement` on the machines `names`, reached with the command `ssh`.

  Names may have the form `user@host`. Without names, all processes are on this machine. With
  `least`, a run has one process on each machine that answers, if at least that many do.
  """

  def __init__(self, names: Sequence[str] = (), ssh: str = "ssh", least: int | None = None):
    self._names, self._ssh, self._least = list(names), ssh, least
    self._is_elastic = least is not None and least < len(names)
    self._present = self._names
    self._answering: list[str] | None = None  # From the last check, if it is unused.
    self._reasons: dict[str, str] = {}  # The last line of ssh, for names that did not answer.

  @contextlib.contextmanager
  def slots(self, count: int, is_stopped: Callable[[], bool], is_back: Callable[[], None]
            ) -> Iterator[list[Slot]]:
    """Implements `Placement.slots`; the ports are free on this machine."""
    if self._is_elastic:
      self._wait(is_stopped)
      count = len(self._present)
    slots = [self._slot(name, port)
             for name, port in zip(itertools.cycle(self._present or [""]), free_ports(count),
                                   strict=False)]
    away = [name for name in self._names if name not in self._present]
    over = threading.Event()
    if away:
      threading.Thread(target=self._probe, args=(away, over, is_back), daemon=True).start()
    try:
      yield slots
    finally:
      over.set()

  def away(self) -> list[str]:
    """Implements `Placement.away`."""
    if not self._is_elastic:
      return []
    self._answering = self._who_answers()
    return [name for name in self._present if name not in self._answering]

  def _slot(self, name: str, port: int) -> Slot:
    if not name:
      return Slot(f"127.0.0.1:{port}", PipedChild)
    host = name.rpartition("@")[2]
    return Slot(f"[{host}]:{port}" if ":" in host else f"{host}:{port}",  # IPv6.
                functools.partial(RemoteChild, name, self._ssh))

  def _wait(self, is_stopped: Callable[[], bool]) -> None:
    """Waits until enough machines answer."""
    found, self._answering = self._answering, None
    notice = time.monotonic()
    while found is None or (len(found) < (self._least or 1) and not is_stopped()):
      if found is not None:
        if time.monotonic() >= notice:
          notice = time.monotonic() + _NOTICE_SECONDS
          missing = [f"{name} ({self._reasons.get(name) or 'no answer'})"
                     for name in self._names if name not in found]
          say(f"waiting for {', '.join(missing)}")
        time.sleep(1.0)
      found = self._who_answers()
    self._present = found

  def _probe(self, away: Sequence[str], over: threading.Event, is_back: Callable[[], None]) -> None:
    """Calls `is_back` once when an absent machine answers, unless `over` is set before."""
    while not over.wait(PROBE_SECONDS):
      if any(map(self._answers, away)) and not over.is_set():
        is_back()
        return

  def _who_answers(self) -> list[str]:
    with ThreadPoolExecutor(len(self._names)) as pool:
      answers = list(pool.map(self._answers, self._names))
    return list(itertools.compress(self._names, answers))

  def _answers(self, name: str) -> bool:
    try:
      done = subprocess.run([*shlex.split(self._ssh), name, "true"], stdin=subprocess.DEVNULL,
                            capture_output=True, timeout=_ANSWER_SECONDS, **AS_TEXT)
    except subprocess.TimeoutExpired:
      self._reasons[name] = f"no answer within {_ANSWER_SECONDS:.0f} s"
      return False
    self._reasons[name] = (done.stderr.strip().splitlines() or [""])[-1]
    return done.returncode == 0
