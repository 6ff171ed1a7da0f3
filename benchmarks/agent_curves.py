"""Draws learning curves of agents: a panel for each environment, a curve for each run.

  python -m benchmarks.agent_curves RUN RUN... [--output=agents.png]

Reads the workdirs of finished and unfinished runs. A curve is the mean return of the evaluation's
episodes over environment steps; the shade spans from the minimum to the maximum.
"""

import re
import sys

import numpy as np
from absl import app, flags
from matplotlib import ticker
from matplotlib.figure import Figure

from benchmarks import panels
from replicator import UsageError
from replicator.workdir import reader

FLAGS = flags.FLAGS
flags.DEFINE_string("output", "agents.png", "The picture.")


def environment(run: reader.Run) -> str:
  """The name of a run's environment.

  Raises:
    UsageError: the run has none, or no evaluation.
  """
  name = re.search(r"^Environments\.name = '(.*)'", run.config, re.MULTILINE)
  if not name or "eval/environment_steps" not in run.series():
    raise UsageError(f"{run.folder}: there are no evaluations of an agent")
  return name[1]


def draw(axes, title: str, found: list[reader.Run]) -> None:
  """Draws the curves of some runs in one environment."""
  for run in found:
    series = run.series()
    steps = series["eval/environment_steps"][1]
    mean, least, greatest = (series[f"eval/return{end}"][1] for end in ("", "_min", "_max"))
    line, = axes.plot(steps, mean, linewidth=1.5, marker="o", markersize=2.5)
    axes.fill_between(steps, least, greatest, color=line.get_color(), alpha=0.12, linewidth=0)
  panels.dress(axes, title, "environment steps")
  axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
  axes.xaxis.set_major_locator(ticker.MaxNLocator(5))


def main(argv: list[str]) -> None:
  by_environment: dict[str, list[reader.Run]] = {}
  try:
    for folder in argv[1:]:
      run = reader.read(folder)
      by_environment.setdefault(environment(run), []).append(run)
    if not by_environment:
      raise UsageError("no runs; write the workdirs of some runs")
  except UsageError as error:
    sys.exit(f"error: {error}")
  figure = Figure(figsize=(3.1 * len(by_environment), 2.6), layout="constrained")
  for axes, (title, found) in zip(np.ravel(figure.subplots(1, len(by_environment))),
                                  by_environment.items(), strict=True):
    draw(axes, title, found)
  figure.axes[0].set_ylabel("return of an episode", fontsize=8)
  figure.savefig(FLAGS.output, dpi=110)
  print(f"drawn: {FLAGS.output}")


if __name__ == "__main__":
  app.run(main)
