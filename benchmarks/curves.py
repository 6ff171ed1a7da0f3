"""Draws what runs logged: a panel for each scalar, a curve for each run.

  python -m benchmarks.curves [NAME=]RUN [NAME=]RUN... --of=eval/top1,loss/network [--by=step] \
    [--log] [--output=curves.png]

Runs with the same NAME, such as seeds, share a color. Minutes count training only. A shaded band
spans the minimum to the maximum if a run logged both, such as `eval/return_min` and
`eval/return_max` for `eval/return`.
"""

import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.plots import plain
from replicator import UsageError
from replicator.errors import nearest
from replicator.training.workdir import reader

from absl import app, flags
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

FLAGS = flags.FLAGS
flags.DEFINE_list("of", [], "The scalars, as in metrics.jsonl.")
flags.DEFINE_string("by", "minutes", "What the curves run over: 'minutes', 'step' or a scalar.")
flags.DEFINE_bool("log", False, "Logarithmic values.")
flags.DEFINE_string("output", "curves.png", "The picture.")


def named(argument: str) -> tuple[str, reader.Run]:
  """The run of an argument of the command line, and its name; raises a UsageError if none is."""
  name, equals, folder = argument.partition("=")
  if not equals or pathlib.Path(argument).is_dir():
    name, folder = argument, argument
  return name, reader.read(folder)


def rows_with(run: reader.Run, scalar: str) -> list[dict[str, Any]]:
  """Returns the rows where a run logged a scalar; raises a UsageError if there are none."""
  found = [row for row in run.rows if scalar in row]
  if not found:
    raise UsageError(f"{run.folder}: has no {scalar}.{nearest(scalar, run.series())}")
  return found


def draw(axes, scalar: str, runs: Sequence[tuple[str, reader.Run]]) -> None:
  """Draws a panel; `runs` have a name each."""
  lines: dict[str, Line2D] = {}  # The last one of each name.
  names = list(dict.fromkeys(name for name, _ in runs))
  for name, run in runs:
    rows, color = rows_with(run, scalar), f"C{names.index(name)}"
    if FLAGS.by == "minutes":
      places = [row["seconds"] / 60 for row in rows]
    else:
      rows = [row for row in rows_with(run, FLAGS.by) if scalar in row]
      places = [row[FLAGS.by] for row in rows]
    lines[name], = axes.plot(places, [row[scalar] for row in rows], color=color, linewidth=1.5,
                             marker="o", markersize=2.5)
    if all({f"{scalar}_min", f"{scalar}_max"} <= row.keys() for row in rows):
      least, greatest = ([row[f"{scalar}_{end}"] for row in rows] for end in ("min", "max"))
      axes.fill_between(places, least, greatest, color=color, alpha=0.12, linewidth=0)
  axes.set_title(scalar, fontsize=9)
  axes.set_xlabel(FLAGS.by, fontsize=8)
  axes.grid(axis="y", color="#e5e7eb")
  plain(axes)
  axes.set_yscale("log" if FLAGS.log else "linear")
  if len(lines) > 1:
    axes.legend(lines.values(), lines.keys(), fontsize=8, frameon=False)


def main(argv: list[str]) -> None:
  try:
    if not FLAGS.of or len(argv) < 2:
      raise UsageError("nothing to draw; write the workdirs of runs, and scalars: --of=eval/return")
    runs = [named(argument) for argument in argv[1:]]
    figure = Figure(figsize=(4.2 * len(FLAGS.of), 2.8), layout="constrained")
    for axes, scalar in zip(figure.subplots(1, len(FLAGS.of), squeeze=False)[0], FLAGS.of,
                            strict=True):
      draw(axes, scalar, runs)
  except UsageError as error:
    sys.exit(f"error: {error}")
  figure.savefig(FLAGS.output, dpi=110)
  print(f"drawn: {FLAGS.output}")


if __name__ == "__main__":
  app.run(main)
