"""Shows what a program is doing, so that it is never silent for long, and the progress of a run.

  loading TensorFlow: 4s
  step 200/5000  41.2 steps/s  2637 examples/s  loss/discriminator 1.234, generator 0.456  2m left
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
_NOTEBOOK_WIDTH = 115  # In characters.
_RATE_SECONDS = 30.0  # Rates are averages over this many recent seconds.
_PLAIN_SECONDS = 5.0  # The minimum time between two plain lines of a run.
_PLAIN_WIDTH = 60  # The width of the scalars on a plain line, in characters.
_LEAST_WIDTH = 24  # The width reserved for scalars on the live line; rates give way.
_BAR_WIDTH = 12


class Status:
  """A context manager that writes lasting lines, and shows what is being done.

  On a terminal or in a notebook, a live line below the others shows what is being done, and for how
  long. Elsewhere, a plain line does so whenever nothing was written for `SILENT_SECONDS`. Output
  goes to `console`, by default standard output; `keep` receives each lasting line.
  """

  def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic,
               keep: Callable[[str], None] = lambda line: None):
    # By default, rich makes a separate output of every line in a notebook.
    self._console = console or Console(force_jupyter=False, width=_NOTEBOOK_WIDTH if
                                       kernel.is_kernel() else None)
    self._clock, self._keep = clock, keep
    self._live: Live | kernel.Line | None = None
    self._what = ""
    self._begun = self._since = 0.0
    self._last_line = -math.inf  # The time of the last plain line.
    self._lock = threading.RLock()
    self._ended = threading.Event()

  _shown: "Status | None" = None  # The last one entered; only one live line is shown at a time.

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
    """Writes a lasting line above the live line."""
    with self._lock:
      self._console.print(line, markup=False, highlight=False, soft_wrap=True)
      self._keep(line)
      self._last_line = self._clock()

  def show(self, line: RenderableType) -> None:
    """Replaces the live line, if there is one."""
    if self._live is not None:
      self._live.update(line, refresh=True)

  def doing(self, what: str) -> None:
    """Shows from now on that `what` is being done; nothing if it is empty."""
    with self._lock:
      if self._what and not what:
        self.show("")
      self._what, self._since = what, self._clock()
      self.beat()

  def beat(self) -> None:
    """Shows what is being done, if an update is due; a thread calls this twice a second."""
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
  """A `Status` that also shows the steps, rates, scalars and remaining time of a run.

  On a terminal or in a notebook this is the live line, elsewhere an occasional plain line. The run
  goes from `first_step` to `total_steps`; a step has `global_batch_size` examples over all
  replicas. Lines go to `console`, by default standard output; `keep` receives lasting lines, and
  the plain lines even on a terminal.
  """

  def __init__(self, total_steps: int, global_batch_size: int, first_step: int = 0, *,
               console: Console | None = None, clock: Callable[[], float] = time.monotonic,
               keep: Callable[[str], None] = lambda line: None):
    super().__init__(console, clock, keep)
    self._total_steps = total_steps
    self._global_batch_size = global_batch_size
    self._first_step = first_step
    self._back: tuple[float, int] | None = None  # The time and the step of the last rollback.
    self._points: collections.deque[tuple[float, int]] = collections.deque()  # (time, step)
    self._unseen = ""  # The newest plain line, if it is not written yet.
    self._last_progress = -math.inf  # The time of the last plain line of progress.

  def __exit__(self, *exception: object) -> None:
    self._write_unseen()
    super().__exit__(*exception)

  def update(self, step: int, scalars: Mapping[str, float], data_wait: float | None = None
             ) -> None:
    """Shows that `step` steps are done, with the `scalars` of this log point; ends `doing`.

    `data_wait` is the share of time spent waiting for data, in [0, 1].
    """
    steps_per_second = self._rate(step)
    done = f"{step}/{self._total_steps}"
    rates = [f"{format_number(steps_per_second)} steps/s",
             f"{format_number(steps_per_second * self._global_batch_size)} examples/s"]
    if data_wait is not None:
      rates.append(f"data wait {data_wait:.0%}")
    time_left = self._time_left(step, steps_per_second)
    self.doing("")
    line = lambda room: "  ".join(
        filter(None, [done, *rates, _format_scalars(scalars, room), time_left]))
    self._unseen = f"step {line(_PLAIN_WIDTH)}"
    if step >= self._total_steps or self._clock() - self._last_progress >= _PLAIN_SECONDS:
      self._write_unseen()
    if self._live is not None:
      rest = lambda: _BAR_WIDTH + 4 + len("  ".join([done, *rates, time_left]))
      # On a narrow terminal, losses take priority over the data wait and the examples per second.
      while scalars and len(rates) > 1 and self._console.width - rest() < _LEAST_WIDTH:
        rates.pop()
      done_part = bar(step, self._total_steps, _BAR_WIDTH), "bar.complete"
      self.show(Text.assemble(done_part, f"  {line(self._console.width - rest())}", no_wrap=True,
                              overflow="ellipsis"))

  def _write_unseen(self) -> None:
    """Writes the newest plain line; on a terminal only to `keep`, since the live line shows it."""
    if self._unseen:
      (self.note if self._live is None else self._keep)(self._unseen)
      self._unseen, self._last_progress = "", self._clock()

  def go_back(self, step: int) -> None:
    """Counts from an earlier step, after the run was rolled back."""
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
  """Formats the scalars that fit, and the number of others: `loss/d 1.234, g 0.456  lr 0.1  +3`.

  The prefix of a group, such as `loss/`, is written only before its first scalar.
  """
  texts, group = [], ""
  for name, value in scalars.items():
    prefix, _, last = name.rpartition("/")
    texts.append((f", {last}" if prefix and prefix == group else f"  {name}")
                 + f" {format_number(float(value))}")
    group = prefix
  for shown in range(len(texts), -1, -1):
    rest = [f"  +{len(texts) - shown}"] if shown < len(texts) else []
    line = "".join(texts[:shown] + rest).removeprefix("  ")
    if len(line) <= width:
      return line
  return ""
