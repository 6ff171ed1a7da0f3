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

import jinja2

from replicator.console.formatting import format_duration, format_number
from replicator.workdir import charts

TEMPLATES = pathlib.Path(__file__).parent / "templates"


@dataclasses.dataclass(frozen=True)
class Badge:
  """A short text beside the title of a page; `kind` is 'good', 'warn', 'bad' or ''."""

  text: str
  kind: str = ""


@dataclasses.dataclass(frozen=True)
class Panel:
  """A chart in a frame; the macro `panels` lays out several.

  Attributes:
    chart: inline SVG of `charts`.
    kind: 'training' or 'evaluation'; colors a single curve.
    note: a short text beside the caption.
    warning: the same, in the color of errors.
    labels: of the curves, for a legend; none for a single curve.
  """

  caption: str
  chart: str
  kind: str = "training"
  note: str = ""
  warning: str = ""
  labels: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Picture:
  """A PNG file inside the page, as a data URL; the macro `picture` draws it.

  A coarse picture is so small that its pixels show when it is enlarged.
  """

  caption: str
  url: str
  is_coarse: bool


def picture(path: pathlib.Path, caption: str) -> Picture:
  """Reads a PNG file."""
  content = path.read_bytes()
  width = int.from_bytes(content[16:20], "big")  # PNG: a signature, then the IHDR chunk.
  data = base64.b64encode(content).decode()
  return Picture(caption, f"data:image/png;base64,{data}", width < 400)


def render(template: str, folder: pathlib.Path = TEMPLATES, **values: object) -> str:
  """Renders a page.

  Args:
    template: the name of a file that extends `layout.html`.
    folder: where the file is; it may use the templates of this package, too.
    **values: what the template uses. `layout.html` needs `title`, `what` (the sort of page) and
      `badges` (a list of `Badge`).

  Raises:
    jinja2.UndefinedError: the template uses a value that is missing.
  """
  return _environment(folder).get_template(template).render(values)


@functools.cache
def _environment(folder: pathlib.Path) -> jinja2.Environment:
  environment = jinja2.Environment(
      loader=jinja2.FileSystemLoader([folder, TEMPLATES]), autoescape=True,
      undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
  environment.filters.update(number=format_number, duration=format_duration)
  environment.globals.update(curve_key=charts.key)
  return environment
