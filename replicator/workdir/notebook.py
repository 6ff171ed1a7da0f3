"""The curves and the newest picture of a run, under the cell of a notebook that trains it."""

import html
import os

from replicator.console.formatting import format_number
from replicator.console.kernel import Place
from replicator.workdir import pages, reader

# The colors of `charts`, which must be readable on white and on black.
_STYLE = """<style>
.replicator-run { --faint: #7d8794; --line: #80808040; font: 13px/1.5 system-ui, sans-serif;
  display: flex; flex-wrap: wrap; gap: 8px 20px; }
.replicator-run figure { --ink: #3b82f6; margin: 0; }
.replicator-run figure.evaluation { --ink: #d97706; }
.replicator-run figcaption { max-width: 340px; text-align: left; font-style: normal; }
.replicator-run text { font-family: inherit !important; }
.replicator-run .values circle { fill: transparent; }
.replicator-run img { display: block; max-width: 100%; max-height: 480px; }
.replicator-run img.coarse { height: 320px; image-rendering: pixelated; }
</style>"""


class LiveReport:
  """A short form of `report.html` in the output of a cell, which `show` brings up to date."""

  def __init__(self, workdir: str | os.PathLike):
    self._workdir = workdir
    self._place = Place()

  def show(self) -> None:
    """Draws the losses and the evaluations so far; `report.html` has all other curves, too."""
    run = reader.read(self._workdir)
    figures = []
    for name, (steps, values) in run.series().items():
      if (reader.kind(name) == "evaluation" or "/" not in name) and name not in reader.TIMES:
        panel = pages.panel(name, [(steps, values)], (run.rows[0]["step"], run.rows[-1]["step"]))
        figures.append(f'<figure class="{panel.kind}"><figcaption>{html.escape(name)} '
                       f"{format_number(values[-1])}</figcaption>{panel.chart}</figure>")
    if run.samples:
      picture = pages.picture(run.samples[-1], run.samples[-1].stem)
      figures.append(f'<figure><figcaption>{picture.caption}</figcaption><img src="{picture.url}"'
                     f'{" class=coarse" * picture.is_coarse} alt=""></figure>')
    self._place.show(f'{_STYLE}<div class="replicator-run">{"".join(figures)}</div>',
                     f"curves and pictures: {run.folder / 'report.html'}")
