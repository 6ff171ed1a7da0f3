"""Compares an agent's DM Control Suite returns with published ones, with intervals over seeds.

  python -m benchmarks.agent_evidence d4pg=runs/d4pg_control [--at=100000] \
    [--picture=evidence.png]

Prints a table of the tasks in a sweep, and draws performance profiles (Agarwal et al. 2021,
arXiv:2108.13264). `d4pg` and `sac` select the published seeds, whose sources are in
`published_returns.json`. A run's return is the mean of its evaluations at 0.9 to 1.1 times `--at`,
in simulator steps, like `environment_steps`. The intervals contain 95% of 2,000 resamples of the
seeds in each task.
"""

import json
import pathlib
import re
import sys
from collections.abc import Callable, Mapping

from benchmarks.record import Table
from replicator import UsageError
from replicator.training.workdir import reader

import numpy as np
from absl import app, flags
from matplotlib.figure import Figure
from scipy import stats

FLAGS = flags.FLAGS
flags.DEFINE_integer("at", 100_000, "Steps of the simulator.")
flags.DEFINE_string("picture", "evidence.png", "The picture.")

Returns = Mapping[str, np.ndarray]
"""The returns of all seeds `[n]`, from 0 to 1,000, by task."""

_RESAMPLES = 2000
_PUBLISHED = pathlib.Path(__file__).with_name("published_returns.json")


def trained(sweep: str, steps: int) -> tuple[Returns, float]:
  """The returns of a sweep's runs at some steps of the simulator, and the updates per step.

  Raises:
    UsageError: no run has an evaluation there.
  """
  found: dict[str, list[float]] = {}
  updates = 0.0
  for folder in sorted(pathlib.Path(sweep).glob("trials/*")):
    run = reader.read(folder)
    task = re.search(r"^Environments\.name = 'dm_control/(.*)-v\d+'", run.config, re.MULTILINE)
    rows = [row for row in run.rows if "eval/return" in row
            and 0.9 * steps <= row["eval/environment_steps"] <= 1.1 * steps]
    if task and rows:
      found.setdefault(task[1].replace("-", "_"), []).append(
          float(np.mean([row["eval/return"] for row in rows])))
      updates = rows[-1]["step"] / rows[-1]["eval/environment_steps"]
  if not found:
    raise UsageError(f"'{sweep}': no trial on the DM Control Suite was evaluated at about "
                     f"{steps:,} steps; write the folder of a sweep")
  return {task: np.array(values) for task, values in found.items()}, updates


def published(agent: str, steps: int) -> Returns:
  """Published returns of an agent; raises a UsageError if there are none."""
  known = json.loads(_PUBLISHED.read_text(encoding="utf-8"))
  if agent not in known or str(steps) not in known[agent]["returns"]["cheetah_run"]:
    raise UsageError(f"{agent} at {steps:,} steps: published returns are those of "
                     f"{' and '.join(known)} at 100,000 and 250,000 steps")
  return {task: np.array(at[str(steps)], float) for task, at in known[agent]["returns"].items()}


def interval(returns: Returns, statistic: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
  """The ends of the 95 % interval of a statistic over resampled seeds: `[2, ...]`.

  Args:
    returns: resampled in each task by itself.
    statistic: `[resamples, runs] -> [resamples, ...]`, over the runs of all tasks.
  """
  rng = np.random.default_rng(0)
  resampled = [values[rng.integers(len(values), size=(_RESAMPLES, len(values)))]
               for values in returns.values()]
  return np.percentile(statistic(np.concatenate(resampled, 1)), [2.5, 97.5], axis=0)


def iqm(runs: np.ndarray) -> np.ndarray:
  """Interquartile means, of the middle half of the runs: `[..., n] -> [...]`."""
  return stats.trim_mean(runs, 0.25, axis=-1)


def profile(runs: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
  """Shares of runs above thresholds: `[..., n], [k] -> [..., k]`."""
  return np.mean(runs[..., np.newaxis] > thresholds, axis=-2)


def in_words(returns: Returns, statistic: Callable[[np.ndarray], np.ndarray]) -> str:
  """A statistic of all runs, its interval if a task has two seeds, and the number of seeds."""
  value = float(statistic(np.concatenate(list(returns.values()))[np.newaxis])[0])
  low, high = interval(returns, statistic)
  seeds = [len(values) for values in returns.values()]
  spread = f" [{low:.0f}, {high:.0f}]" if max(seeds) > 1 else ""
  number = f"{min(seeds)}" if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)}"
  return f"{value:.0f}{spread} ({number})"


def mean(runs: np.ndarray) -> np.ndarray:
  """Means over the runs: `[..., n] -> [...]`."""
  return np.mean(runs, axis=-1)


def place(ours: np.ndarray, theirs: np.ndarray) -> str:
  """Where the mean of some seeds is, seen from the interval of others."""
  low, high = interval({"": theirs}, mean)
  return "below" if ours.mean() < low else "above" if ours.mean() > high else "within"


def print_table(agent: str, ours: Returns, theirs: Returns) -> None:
  """Prints a row for each task, and one for all."""
  table = Table(f"returns of {agent.upper()} at {FLAGS.at:,} steps, compared with published ones",
                {"seeds": "", "mean [interval] (seeds)": "", "published": "", "place": ""}, "task")
  for task, values in ours.items():
    table.add(task.replace("_", " "), ", ".join(f"{value:.0f}" for value in values),
              in_words({task: values}, mean), in_words({task: theirs[task]}, mean),
              place(values, theirs[task]))
  table.add("interquartile mean", "", in_words(ours, iqm), in_words(theirs, iqm), "")


def draw(axes, agent: str, results: Mapping[str, Returns]) -> None:
  """Draws performance profiles, with their intervals."""
  thresholds = np.linspace(0, 1000, 101)
  for name, returns in results.items():
    line, = axes.plot(thresholds, profile(np.concatenate(list(returns.values())), thresholds),
                      label=name, linewidth=1.5)
    axes.fill_between(thresholds, *interval(returns, lambda runs: profile(runs, thresholds)),
                      color=line.get_color(), alpha=0.15, linewidth=0)
  axes.set_title(f"{agent} at {FLAGS.at:,} steps", fontsize=9)
  axes.set_xlabel("return", fontsize=8)
  axes.set_ylabel("share of runs above", fontsize=8)
  axes.tick_params(labelsize=8, length=0)
  axes.grid(color="#e5e7eb")
  axes.set_frame_on(False)
  axes.set_ylim(0, 1.02)
  axes.legend(fontsize=8, frameon=False)


def main(argv: list[str]) -> None:
  try:
    sweeps = dict(argument.split("=", 1) for argument in argv[1:] if "=" in argument)
    if not sweeps or len(sweeps) < len(argv) - 1:
      raise UsageError("write the folder of a sweep for each agent: d4pg=runs/d4pg_control")
    figure = Figure(figsize=(4.2 * len(sweeps), 2.8), layout="constrained")
    panels = figure.subplots(1, len(sweeps), squeeze=False)[0]
    for axes, (agent, sweep) in zip(panels, sweeps.items(), strict=True):
      known = published(agent, FLAGS.at)
      ours, updates = trained(sweep, FLAGS.at)
      ours = {task: ours[task] for task in known if task in ours}
      theirs = {task: known[task] for task in ours}
      print_table(agent, ours, theirs)
      print(f"{agent} made an update every {1 / updates:.1f} steps of the simulator.\n")
      draw(axes, agent, {"this project": ours, "published": theirs})
  except UsageError as error:
    sys.exit(f"error: {error}")
  figure.savefig(FLAGS.picture, dpi=110)
  print(f"drawn: {FLAGS.picture}")


if __name__ == "__main__":
  app.run(main)
