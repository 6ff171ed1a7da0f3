"""The present work of a program, so that it is never silent for long.

  loading TensorFlow: 4s
"""

import math
import threading
import time
from collections.abc import Callable

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from replicator.console import kernel
from replicator.console.formatting import format_duration

SILENT_SECONDS = 4.0  # The longest time without a plain line while something is being done.
_BEAT_SECONDS = 0.5
_NOTEBOOK_WIDTH = 115  # Characters.


class Status:
  """Writes lines that stay, and says what is being done, from entry to exit.

  On a terminal, a live line below the others says what is being done, and for how long; so does one
  line of a notebook. Elsewhere a plain line says so whenever nothing was written for
  `SILENT_SECONDS`. All goes to `console`, or else to standard output.
  """

  def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic):
    # By itself, rich would make an output of its own of every line in a notebook.
    self._console = console or Console(force_jupyter=False, width=_NOTEBOOK_WIDTH if
                                       kernel.is_kernel() else None)
    self._clock = clock
    self._live: Live | kernel.Line | None = None
    self._what = ""
    self._begun = self._since = 0.0
    self._last_line = -math.inf  # When the last plain line was written.
    self._lock = threading.RLock()
    self._ended = threading.Event()

  def __enter__(self) -> "Status":
    self._begun = self._last_line = self._clock()
    if kernel.is_kernel():
      self._live = kernel.Line()
    elif self._console.is_terminal and not self._console.is_dumb_terminal:
      self._live = Live("", console=self._console, auto_refresh=False)
      self._live.start()
    threading.Thread(target=self._beats, daemon=True).start()
    return self

  def __exit__(self, *exception: object) -> None:
    self._ended.set()
    self.doing("")
    if self._live is not None:
      self._live.stop()

  def note(self, line: str) -> None:
    """Writes one line that stays on the terminal, above the live line."""
    with self._lock:
      self._console.print(line, markup=False, highlight=False, soft_wrap=True)
      self._last_line = self._clock()

  def show(self, line: RenderableType) -> None:
    """Replaces the live line, if there is one."""
    if self._live is not None:
      self._live.update(line, refresh=True)

  def doing(self, what: str) -> None:
    """Says from now on that `what` is being done; nothing if it is empty."""
    with self._lock:
      if self._what and not what:
        self.show("")
      self._what, self._since = what, self._clock()
      self.beat()

  def beat(self) -> None:
    """Says what is being done if it is time to; a thread calls it twice a second."""
    with self._lock:
      now = self._clock()
      if self._what and self._live is not None:
        self.show(Text(f"{self._what}  {format_duration(now - self._since)}"))
      elif self._what and now - self._last_line >= SILENT_SECONDS:
        self.note(f"{self._what}: {format_duration(now - self._since)}")

  def _beats(self) -> None:
    while not self._ended.wait(_BEAT_SECONDS):
      self.beat()
