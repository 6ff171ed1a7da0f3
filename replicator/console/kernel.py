"""Replaceable output in a Jupyter notebook."""

import html
import sys
import time
from typing import Any

from rich.console import RenderableType

_SECONDS = 0.5  # The minimum time between two updates of a line.


def is_kernel() -> bool:
  """Returns whether this process is the kernel of a notebook."""
  ipython = sys.modules.get("IPython")
  shell = ipython and ipython.get_ipython()
  return any(each.__name__ == "ZMQInteractiveShell" for each in type(shell).__mro__)


class Place:
  """An output of the running cell, which the first `show` creates and later ones replace."""

  def __init__(self) -> None:
    self._handle: Any = None

  def show(self, page: str, text: str) -> None:
    """Shows HTML, or `text` if the notebook cannot show HTML."""
    from IPython.display import display
    content = {"text/html": page, "text/plain": text}
    if self._handle is None:
      self._handle = display(content, raw=True, display_id=True)
    else:
      self._handle.update(content, raw=True)


class Line:
  """A live line in a notebook, like `rich.live.Live`, updated at most twice a second."""

  def __init__(self) -> None:
    self._place = Place()
    self._text = self._shown = ""
    self._next = 0.0  # The earliest time for an update.

  def update(self, line: RenderableType, refresh: bool = True) -> None:
    """Replaces the line."""
    self._text = str(line)
    if self._shown != self._text and time.monotonic() >= self._next:
      self._show()

  def stop(self) -> None:
    """Shows the newest line, which stays."""
    if self._shown != self._text:
      self._show()

  def _show(self) -> None:
    self._shown, self._next = self._text, time.monotonic() + _SECONDS
    self._place.show(f"<pre>{html.escape(self._text)}</pre>", self._text)
