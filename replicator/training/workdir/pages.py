"""Self-contained HTML pages about runs, which need no network.

A page is rendered from a Jinja2 template that extends `templates/layout.html`, which has the style
sheet and the header, and imports the macros of `templates/parts.html`. All values are escaped,
except the SVG from `charts`.
"""

import base64
import dataclasses
import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from replicator.console.formatting import format_duration, format_number
from replicator.training.workdir import charts, reader
from replicator.training.workdir.charts import Series

import numpy as np

if TYPE_CHECKING:  # A run imports it for its first report, not before its first step.
  import jinja2

TEMPLATES = pathlib.Path(__file__).parent / "templates"


@dataclasses.dataclass(frozen=True)
class Badge:
  """A short label next to a page's title; `kind` is 'good', 'warn', 'bad' or ''."""

  text: str
  kind: str = ""


@dataclasses.dataclass(frozen=True)
class Panel:
  """A framed chart; the macro `panels` lays out several."""

  caption: str
  chart: str  # Inline SVG from `charts`.
  kind: str = "training"  # Or 'evaluation': the color of a single curve.
  note: str = ""  # A short text next to the caption.
  warning: str = ""  # The same, in the error color.
  labels: Sequence[str] = ()  # The curves' names, for a legend; empty for a single curve.
  data: Mapping[str, Any] | None = None  # The same curves, for `templates/page.js` to enlarge.


@dataclasses.dataclass(frozen=True)
class Picture:
  """A PNG image embedded in the page as a data URL; the macro `picture` draws it."""

  caption: str
  url: str
  is_coarse: bool  # Small enough that its pixels show when it is enlarged.


def panel(name: str, series: Sequence[Series], span: tuple[float, float] | None = None,
          band: Sequence[np.ndarray] = (), names: Sequence[str] = (), kind: str = "") -> Panel:
  """Draws the chart of a metric, with markers at evaluations; see `charts.curves`.

  `names` are the names of the curves, if there are several. `kind` defaults to the metric's.
  """
  is_evaluated = reader.kind(name) == "evaluation"
  smooth = not charts.is_exact(name, series)
  lost = sum(int((~np.isfinite(values)).sum()) for _, values in series)
  return Panel(name, charts.curves(series, span, "o" if is_evaluated else "", band, smooth),
               kind or reader.kind(name), "shaded: min to max" if band else "",
               f"{lost} not finite" if lost else "",
               data=charts.data(series, names, span, band, smooth))


def picture(path: pathlib.Path, caption: str) -> Picture:
  """Reads a PNG file."""
  content = path.read_bytes()
  width = int.from_bytes(content[16:20], "big")  # PNG: a signature, then the IHDR chunk.
  data = base64.b64encode(content).decode()
  return Picture(caption, f"data:image/png;base64,{data}", width < 400)


def render(template: str, folder: pathlib.Path = TEMPLATES, **values: object) -> str:
  """Renders `template`, a file in `folder`, with `values`.

  It can also use this package's templates. `layout.html` needs `title`, `what` (the kind of page)
  and `badges` (a list of `Badge`). Raises jinja2.UndefinedError if a value is missing.
  """
  return _environment(folder).get_template(template).render(values)


@functools.cache  # A run renders its report many times; this compiles the templates once.
def _environment(folder: pathlib.Path) -> "jinja2.Environment":
  import jinja2
  environment = jinja2.Environment(
      loader=jinja2.FileSystemLoader([folder, TEMPLATES]), autoescape=True,
      undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
  environment.filters.update(number=format_number, duration=format_duration)
  environment.globals.update(curve_key=charts.key)
  return environment
