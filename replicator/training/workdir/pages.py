"""Pages about runs: HTML files that need no other file and no network.

A page is rendered from a Jinja2 template that extends `templates/layout.html`, which has the style
sheet and the header, and imports the macros of `templates/parts.html`. Every value is escaped,
except the SVG of `charts`.
"""

import base64
import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from replicator.console.formatting import format_duration, format_number
from replicator.training.workdir import charts, reader
from replicator.training.workdir.charts import Series

import numpy as np

if TYPE_CHECKING:  # A training imports it for its first report, and not before its first step.
  import jinja2

TEMPLATES = pathlib.Path(__file__).parent / "templates"


@dataclasses.dataclass(frozen=True)
class Badge:
  """A short text beside the title of a page; `kind` is 'good', 'warn', 'bad' or ''."""

  text: str
  kind: str = ""


@dataclasses.dataclass(frozen=True)
class Panel:
  """A chart in a frame; the macro `panels` lays out several."""

  caption: str
  chart: str  # Inline SVG of `charts`.
  kind: str = "training"  # Or 'evaluation': the color of a single curve.
  note: str = ""  # A short text beside the caption.
  warning: str = ""  # The same, in the color of errors.
  labels: Sequence[str] = ()  # The curves' names, for a legend; none for a single curve.


@dataclasses.dataclass(frozen=True)
class Picture:
  """A PNG file inside the page, as a data URL; the macro `picture` draws it."""

  caption: str
  url: str
  is_coarse: bool  # So small that its pixels show when it is enlarged.


def panel(name: str, series: Sequence[Series], span: tuple[float, float] | None = None,
          band: Sequence[np.ndarray] = ()) -> Panel:
  """The chart of a metric, with marks at evaluations; see `charts.curves`."""
  kind = reader.kind(name)
  lost = sum(int((~np.isfinite(values)).sum()) for _, values in series)
  return Panel(name, charts.curves(series, span, "o" if kind == "evaluation" else "", band), kind,
               "shaded: min to max" if band else "", f"{lost} not finite" if lost else "")


def picture(path: pathlib.Path, caption: str) -> Picture:
  """Reads a PNG file."""
  content = path.read_bytes()
  width = int.from_bytes(content[16:20], "big")  # PNG: a signature, then the IHDR chunk.
  data = base64.b64encode(content).decode()
  return Picture(caption, f"data:image/png;base64,{data}", width < 400)


def render(template: str, folder: pathlib.Path = TEMPLATES, **values: object) -> str:
  """Renders `template`, a file of `folder`, with the `values` it uses.

  It may use the templates of this package, too. `layout.html` needs `title`, `what` (the sort of
  page) and `badges` (a list of `Badge`). Raises jinja2.UndefinedError if a value is missing.
  """
  return _environment(folder).get_template(template).render(values)


@functools.cache  # A run renders its report again and again; the templates are compiled once.
def _environment(folder: pathlib.Path) -> "jinja2.Environment":
  import jinja2
  environment = jinja2.Environment(
      loader=jinja2.FileSystemLoader([folder, TEMPLATES]), autoescape=True,
      undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
  environment.filters.update(number=format_number, duration=format_duration)
  environment.globals.update(curve_key=charts.key)
  return environment
