"""The present work of a program, so that it is never silent for long, and a training's progress.

  loading TensorFlow: 4s
  step 200/5000  41.2 steps/s  2637 examples/s  data wait 2%  d 1.234  g 0.456  1m 56s left
"""

import collections
import math
import threading
import time
from collections.abc import Callable, Mapping

from replicator.console import kernel
from replicator.console.formatting import bar, format_duration, format_number

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

SILENT_SECONDS = 4.0  # The longest time without a plain line while something is being done.
_BEAT_SECONDS = 0.5
_NOTEBOOK_WIDTH = 115  # Characters.
_RATE_SECONDS = 30.0  # Rates are means over this much of the recent past.
_PLAIN_SECONDS = 5.0  # The least time between two plain lines of a training.
_PLAIN_WIDTH = 60  # Characters for the scalars of a plain line.
_BAR_WIDTH = 12


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

  _shown: "Status | None" = None  # The newest one that was entered; one line at a time is live.

  def __enter__(self) -> "Status":
    if Status._shown is not None:
      Status._shown.__exit__()
    Status._shown = self
    self._begun = self._last_line = self._clock()
    if kernel.is_kernel():
      self._live = kernel.Line()
    elif self._console.is_terminal and not self._console.is_dumb_terminal:
      self._live = Live("", console=self._console, auto_refresh=False)
      self._live.start()
    threading.Thread(target=self._beats, daemon=True).start()
    return self

  def __exit__(self, *exception: object) -> None:
    if Status._shown is self:
      Status._shown = None
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


class Progress(Status):
  """Shows the steps, rates, scalars and the time left of a training, from entry to exit.

  On a terminal or in a notebook this is the live line, elsewhere a plain line now and then. The
  training goes from `first_step` to `total_steps`; a step has `global_batch_size` examples over all
  replicas. The lines go to `console`, or else to standard output.
  """

  def __init__(self, total_steps: int, global_batch_size: int, first_step: int = 0, *,
               console: Console | None = None, clock: Callable[[], float] = time.monotonic):
    super().__init__(console, clock)
    self._total_steps = total_steps
    self._global_batch_size = global_batch_size
    self._first_step = first_step
    self._back: tuple[float, int] | None = None  # When the run was rolled back, and to which step.
    self._points: collections.deque[tuple[float, int]] = collections.deque()  # (time, step)
    self._unseen = ""  # The newest plain line, if it has not been written yet.
    self._last_progress = -math.inf  # When the last plain line was written.

  def __exit__(self, *exception: object) -> None:
    if self._unseen:
      self.note(self._unseen)
    super().__exit__(*exception)

  def update(self, step: int, scalars: Mapping[str, float], data_wait: float | None = None
             ) -> None:
    """Shows that `step` steps are done, with the `scalars` of this log point; ends `doing`.

    `data_wait` is the share of the time in which the steps waited for data, in [0, 1].
    """
    steps_per_second = self._rate(step)
    done = f"{step}/{self._total_steps}"
    rates = [f"{format_number(steps_per_second)} steps/s",
             f"{format_number(steps_per_second * self._global_batch_size)} examples/s"]
    if data_wait is not None:
      rates.append(f"data wait {data_wait:.0%}")
    time_left = self._time_left(step, steps_per_second)
    self.doing("")
    room = _PLAIN_WIDTH
    if self._live is not None:
      room = self._console.width - len("  ".join([done, *rates, time_left])) - _BAR_WIDTH - 4
    line = "  ".join(filter(None, [done, *rates, _format_scalars(scalars, room), time_left]))
    if self._live is not None:
      done_part = bar(step, self._total_steps, _BAR_WIDTH), "bar.complete"
      self.show(Text.assemble(done_part, f"  {line}", no_wrap=True, overflow="ellipsis"))
      return
    self._unseen = f"step {line}"
    now = self._clock()
    if step >= self._total_steps or now - self._last_progress >= _PLAIN_SECONDS:
      self.note(self._unseen)
      self._unseen, self._last_progress = "", now

  def go_back(self, step: int) -> None:
    """Counts from an earlier step on, because the run was rolled back."""
    self._points.clear()
    self._back = self._clock(), step

  def _rate(self, step: int) -> float:
    now = self._clock()
    since, from_step = self._back or (self._begun, self._first_step)
    self._points.append((now, step))
    if len(self._points) > 1:  # The step is compiled before the first log point.
      while len(self._points) > 2 and self._points[1][0] <= now - _RATE_SECONDS:
        self._points.popleft()
      since, from_step = self._points[0]
    return (step - from_step) / (now - since) if now > since else 0.0

  def _time_left(self, step: int, steps_per_second: float) -> str:
    if step >= self._total_steps:
      return f"took {format_duration(self._clock() - self._begun)}"
    if steps_per_second <= 0:
      return ""
    return f"{format_duration((self._total_steps - step) / steps_per_second)} left"


def _format_scalars(scalars: Mapping[str, float], width: int) -> str:
  """`d 1.234  g 0.456  +3`: as many scalars as fit, then the number of the others."""
  texts = [f"{name} {format_number(float(value))}" for name, value in scalars.items()]
  for shown in range(len(texts), -1, -1):
    rest = [f"+{len(texts) - shown}"] if shown < len(texts) else []
    line = "  ".join(texts[:shown] + rest)
    if len(line) <= width:
      return line
  return ""
