"""One self-contained HTML page about a run, from the files of its workdir."""

import base64
import dataclasses
import io
import json
import math
import os
import pathlib
import re
import string
from html import escape

import numpy as np

from replicator.errors import UsageError
from replicator.progress import format_duration, format_number

_STRIP = 6         # Pictures between the first and the last.
_SMOOTH_FROM = 40  # Curves of fewer points are drawn as they are.
_LOG_FROM = 30.0   # A fall by this factor asks for a logarithmic axis.
# Colors that matplotlib writes, and what the page's style sheet then makes of them.
_COLORS = {"#010101": "var(--faint)", "#020202": "var(--line)", "#030303": "var(--ink)"}


def write_report(workdir: str | os.PathLike) -> pathlib.Path:
  """Writes `report.html` into a run's workdir; returns its path.

  Reads `metrics.jsonl`, `run.json`, `config.gin` and `samples/step-NNNNNNNN.png`. Where one is
  missing or unreadable, the page says so. The page needs no other file and no network.

  Raises:
    UsageError: `workdir` is no folder.
  """
  folder = pathlib.Path(workdir)
  if not folder.is_dir():
    raise UsageError(f"'{workdir}': no such folder; write the workdir of a run.")
  run = _read(folder)
  title = escape(str(run.facts.get("experiment") or folder.resolve().name))
  page = _PAGE.substitute(
    title=title, badges=_badges(run), tiles=_tiles(run), table=_table(run), panels=_panels(run),
    samples=_samples(run), config=_config(run), facts=_facts(run))
  path = folder / "report.html"
  path.write_text(page, encoding="utf-8")
  return path


@dataclasses.dataclass
class _Run:
  rows: list[dict]             # The readable lines of metrics.jsonl.
  num_torn: int                # Its other lines.
  facts: dict                  # run.json
  config: str                  # config.gin
  samples: list[pathlib.Path]  # By step.

  def series(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """`{name: (steps [n], values [n])}`, evaluations first."""
    points: dict[str, list[tuple[int, float]]] = {}
    for row in self.rows:
      for name, value in row.items():
        if name not in ("step", "seconds") and isinstance(value, int | float):
          points.setdefault(name, []).append((row["step"], value))
    names = sorted(points, key=lambda name: _kind(name) != "evaluation")
    return {name: tuple(np.array(points[name], float).T) for name in names}


def _read(folder: pathlib.Path) -> _Run:
  def text(name: str) -> str:
    path = folder / name
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

  def parsed(content: str) -> dict:
    try:
      value = json.loads(content)
    except ValueError:
      return {}
    return value if isinstance(value, dict) else {}

  lines = [parsed(line) for line in text("metrics.jsonl").splitlines()]
  rows = [row for row in lines if isinstance(row.get("step"), int)]
  return _Run(rows, len(lines) - len(rows), parsed(text("run.json")), text("config.gin"),
              sorted((folder / "samples").glob("step-*.png")))


def _kind(name: str) -> str:
  return "evaluation" if name.startswith("eval/") else "training"


def _missing(file: str, what: str) -> str:
  return f'<p class="warn">{file} is missing or cannot be read: {what} to show.</p>'


def _badges(run: _Run) -> str:
  replicas = run.facts.get("num_replicas")
  texts = [run.facts.get("strategy"),
           replicas and f"{replicas} replica{'s' if replicas != 1 else ''}",
           run.facts.get("precision")]
  kind, status = _status(run)
  return f'<span class="{kind}">{escape(status)}</span>' + "".join(
    f"<span>{escape(str(text))}</span>" for text in texts if text)


def _status(run: _Run) -> tuple[str, str]:
  """How it went, as a class of the style sheet and as words."""
  if not run.rows:
    return "warn", "nothing logged"
  step, steps = run.rows[-1]["step"], run.facts.get("steps")
  lost = [name for name, (_, values) in run.series().items() if not math.isfinite(values[-1])]
  if lost:
    return "bad", f"not finite at step {step}: {', '.join(lost)}"
  if isinstance(steps, int) and step < steps:
    return "warn", f"step {step} of {steps}"
  return "good", f"finished at step {step}"


def _tiles(run: _Run) -> str:
  tiles = {"steps": str(run.rows[-1]["step"])} if run.rows else {}
  timed = np.array([(row["step"], row["seconds"]) for row in run.rows if "seconds" in row])
  if len(timed) > 1:
    steps, seconds = np.diff(timed, axis=0).T
    rate = np.median(steps[seconds > 0] / seconds[seconds > 0]) if any(seconds > 0) else 0.0
    tiles["training time"] = format_duration(timed[-1, 1])
    tiles["steps per second"] = f"{rate:.3g}"
    if batch := run.facts.get("global_batch_size"):
      tiles["examples per second"] = format_number(rate * batch)
  return "".join(f"<div><b>{value}</b>{name}</div>" for name, value in tiles.items())


def _table(run: _Run) -> str:
  body = ""
  for name, (_, values) in run.series().items():
    finite = values[np.isfinite(values)]
    shown = [values[-1], values[0], min(finite, default=math.nan), max(finite, default=math.nan)]
    body += (f'<tr><th class="{_kind(name)}">{escape(name)}'
             + "".join(f"<td>{format_number(value)}" for value in shown))
  if not body:
    return _missing("metrics.jsonl", "no metrics")
  torn = f'<p class="warn">Unreadable lines in metrics.jsonl: {run.num_torn}.</p>'
  return ("<table class=numbers><tr><th>metric<th>last<th>first<th>lowest<th>highest"
          f"{body}</table>{torn if run.num_torn else ''}")


def _config(run: _Run) -> str:
  text = re.sub(r"^#.*", r"<i>\g<0></i>", escape(run.config, quote=False), flags=re.MULTILINE)
  return f"<pre>{text}</pre>" if text else _missing("config.gin", "no configuration")


def _facts(run: _Run) -> str:
  if not run.facts:
    return _missing("run.json", "no command and no versions")
  rows = "".join(f"<tr><th>{escape(name.replace('_', ' '))}<td>{escape(_words(value))}"
                 for name, value in run.facts.items() if name != "command" and value is not None)
  return f"<pre>{escape(str(run.facts.get('command', '')))}</pre><table>{rows}</table>"


def _words(value: object) -> str:
  if isinstance(value, dict):
    return ", ".join(f"{key} {_words(item)}" for key, item in value.items())
  return ", ".join(map(_words, value)) if isinstance(value, list) else str(value)


def _samples(run: _Run) -> str:
  if not run.samples:
    return _missing("samples/", "no pictures")
  pair = [run.samples[0], run.samples[-1]] if len(run.samples) > 1 else run.samples
  between = run.samples[1:-1]
  chosen = np.linspace(0, len(between) - 1, min(_STRIP, len(between))).round().astype(int)
  return (f'<div class="pair">{"".join(map(_figure, pair))}</div>'
          f'<div class="strip">{"".join(_figure(between[i]) for i in chosen)}</div>')


def _figure(path: pathlib.Path) -> str:
  content = path.read_bytes()
  step = path.stem.removeprefix("step-").lstrip("0") or "0"
  width = int.from_bytes(content[16:20], "big")      # PNG: a signature, then the IHDR chunk.
  look = ' class="coarse"' if width < 400 else ""  # Enlarged, show pixels and not a blur.
  data = base64.b64encode(content).decode()
  return (f'<figure><img{look} alt="samples at step {step}" src="data:image/png;base64,{data}">'
          f"<figcaption>step {step}</figcaption></figure>")


def _panels(run: _Run) -> str:
  series = run.series()
  if not series:
    return _missing("metrics.jsonl", "no curves")
  first, last = run.rows[0]["step"], run.rows[-1]["step"]
  panels = ""
  for name, (steps, values) in series.items():
    finite = np.isfinite(values)
    lost = f"<small>{(~finite).sum()} not finite</small>" if not finite.all() else ""
    curve = _curve(steps[finite], values[finite], (first, max(last, first + 1)),
                   marker="o" if _kind(name) == "evaluation" or finite.sum() == 1 else "")
    panels += (f'<figure class="{_kind(name)}"><figcaption>{escape(name)}{lost}</figcaption>'
               f"{curve}</figure>")
  return panels


def _curve(steps: np.ndarray, values: np.ndarray, span: tuple[int, int], marker: str) -> str:
  """Inline SVG, in the colors and the type of the page; every panel's plot has the same place."""
  from matplotlib import rc_context, ticker
  from matplotlib.figure import Figure
  if not len(values):
    return ""
  text, grid, ink = _COLORS
  smooth = _smoothed(values)
  with rc_context({"svg.fonttype": "none", "font.size": 8}):
    figure = Figure(figsize=(3.6, 1.9))
    axes = figure.add_axes((0.16, 0.12, 0.81, 0.83))
    if smooth is not values:  # An outlier must not flatten the curve: it stays at the edge.
      raw = np.clip(values, *np.percentile(values, [1, 99]))
      axes.plot(steps, raw, color=ink, linewidth=0.8, alpha=0.3)
    axes.plot(steps, smooth, color=ink, linewidth=1.5, marker=marker, markersize=4,
              clip_on=False)
    if min(values) > 0 and max(values) > _LOG_FROM * np.percentile(values, 10):
      axes.set_yscale("log")
      few_decades = max(values) < 1e3 * min(values)
      axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if few_decades else (1,)))
      axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: format_number(value))
    axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    axes.xaxis.set_major_locator(ticker.MaxNLocator(6, integer=True))
    axes.set_xlim(*span)
    axes.tick_params(length=0, pad=5, colors=text)
    axes.grid(axis="y", color=grid)
    axes.set_frame_on(False)
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
  svg = file.getvalue()
  for color, variable in _COLORS.items():
    svg = svg.replace(color, variable)
  return svg[svg.index("<svg"):]


def _smoothed(values: np.ndarray) -> np.ndarray:
  """A centered moving average over a twenty-fifth of the curve; a short curve as it is."""
  if len(values) < _SMOOTH_FROM:
    return values
  width = max(3, len(values) // 25 | 1)
  middle = np.convolve(values, np.ones(width) / width, "valid")
  at = np.arange(width)  # At both ends, where no window fits, the line through the last window.
  head, tail = (np.polyval(np.polyfit(at, end, 1), at) for end in (values[:width], values[-width:]))
  return np.concatenate([head[:width // 2], middle, tail[-(width // 2):]])


_PAGE = string.Template("""<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title: training report</title>
<style>
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --text: #1c2430; --faint: #66707f;
  --line: #e2e6ec; --training: #2563eb; --evaluation: #c2500c; --good: #15803d; --warn: #a16207;
  --bad: #c81e1e; }
@media (prefers-color-scheme: dark) { :root { --page: #0f1319; --card: #181e27; --text: #e3e8ef;
  --faint: #929dad; --line: #2a323e; --training: #6ba4ff; --evaluation: #ff9d57; --good: #4ade80;
  --warn: #facc15; --bad: #ff7b7b; } }
* { box-sizing: border-box; }
body { max-width: 1160px; margin: 0 auto; padding: 40px 24px 64px; background: var(--page);
  color: var(--text); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { margin: 0 0 12px; font-size: 34px; line-height: 1.2; letter-spacing: -.02em; }
h2 { margin: 40px 0 12px; font-size: 18px; }
header small, .tiles div, figcaption { color: var(--faint); font-size: 13px; }
.badges span { display: inline-block; margin: 0 8px 8px 0; padding: 2px 12px; font-size: 13px;
  border: 1px solid var(--line); border-radius: 99px; background: var(--card); }
.badges span:first-child { font-weight: 600; border-color: currentColor; }
.good { color: var(--good); } .warn { color: var(--warn); } .bad { color: var(--bad); }
.training { --ink: var(--training); } .evaluation { --ink: var(--evaluation); }
.card, .panels figure, .tiles div { padding: 14px 18px; border: 1px solid var(--line);
  border-radius: 10px; background: var(--card); overflow-x: auto; }
.tiles, .panels, .pair, .strip { display: grid; gap: 16px; }
.tiles, .strip, table + p { margin-top: 16px; }
.tiles { grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); }
.panels { grid-template-columns: repeat(auto-fill, minmax(min(320px, 100%), 1fr)); }
.pair { grid-template-columns: repeat(auto-fit, minmax(min(320px, 100%), 1fr)); }
.strip { grid-template-columns: repeat(auto-fit, minmax(120px, 1fr)); }
.tiles b { display: block; color: var(--text); font-size: 26px; line-height: 1.3; }
figure, p { margin: 0; min-width: 0; }
.panels p { grid-column: 1 / -1; }
figcaption { overflow-wrap: anywhere; }
.panels figcaption { color: var(--text); font-weight: 600; }
.panels small { float: right; color: var(--bad); }
svg, img { display: block; width: 100%; height: auto; }
svg text { font-family: inherit !important; fill: var(--faint) !important; }
img { max-height: 640px; object-fit: contain; border-radius: 6px; }
img.coarse { image-rendering: pixelated; }
table { width: 100%; border-collapse: collapse; font-size: 14px; }
th, td { padding: 5px 0; border-top: 1px solid var(--line); text-align: left;
  vertical-align: top; font-weight: 400; }
.numbers tr:first-child th { border: 0; color: var(--faint); }
.numbers td, .numbers th + th { padding-left: 16px; text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.numbers [class], .numbers th + td { font-weight: 600; }
.numbers [class]::before { content: ""; display: inline-block; width: 8px; height: 8px;
  margin-right: 10px; border-radius: 50%; background: var(--ink); }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere;
  font: 13px/1.55 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre i { color: var(--faint); font-style: normal; }
pre + table { margin-top: 14px; }
pre + table th { width: 180px; color: var(--faint); }
</style>
<header><small>Training report</small><h1>$title</h1><div class="badges">$badges</div></header>
<div class="tiles">$tiles</div>
<h2>Metrics</h2><div class="card">$table</div>
<h2>Curves by step</h2><div class="panels">$panels</div>
<h2>Samples</h2><div class="card">$samples</div>
<h2>Configuration</h2><div class="card">$config</div>
<h2>Command and versions</h2><div class="card">$facts</div>
""")
