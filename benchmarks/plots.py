"""Draws the speeds and the memory that the documentation shows, from the records.

  python -m benchmarks.plots

`docs/speed.png` compares steps with the same steps in other libraries. `docs/memory.png` shows the
memory of a step against its number of micro-batches, and `docs/sharded.png` that of a replica
against the number of replicas, with the time per step. `docs/returns.png` compares agents with
published ones.
"""

import pathlib
from typing import Any

from benchmarks import agent_evidence, record

import numpy as np
from absl import app
from matplotlib.axes import Axes
from matplotlib.figure import Figure

DOCS = pathlib.Path(__file__).parents[1] / "docs"
OWN, OTHER = "#6366f1", "#c7d2fe"
NAMES = {"ours": "this project", "xla": "with XLA", "ours_8": "in 8 environments", "keras": "Keras",
         "pytorch": "PyTorch", "jax": "JAX", "products": "matrix products alone",
         "sb3": "Stable-Baselines3", "sb3_8": "the same in 8", "torch": "PyTorch loop"}
SPEEDS = {  # The record, and the column, of each panel.
    "SN-GAN, examples a second": ("sngan_step", "examples/s"),
    "D4PG learner, steps a second": ("d4pg_step", "steps/s"),
    "SAC with acting, steps a CPU second": ("agent_speed", "steps per CPU second")}

_OURS = ("ours", "xla", "ours_8")


def column(name: str, of: str) -> dict[str, float]:
  """Returns a column of the first table of a record, by row."""
  table = record.read(name)["tables"][0]
  index = list(table["columns"]).index(of)
  return {row: cells[index] for row, cells in table["rows"] if cells[index] is not None}


def bars(axes: Axes, title: str, values: dict[str, float]) -> None:
  """Draws a bar for each contender; those of this project in a darker color."""
  names = [NAMES.get(name, name) for name in values]
  drawn = axes.barh(names, list(values.values()), height=0.65,
                    color=[OWN if name in _OURS else OTHER for name in values])
  axes.bar_label(drawn, fmt="{:.0f}", padding=3, fontsize=8)
  axes.invert_yaxis()
  axes.set_title(title, fontsize=9)
  axes.set_xlim(0, 1.15 * max(values.values()))
  plain(axes)
  axes.set_xticks([])


def plain(axes: Axes) -> None:
  """Sets the style that all plots share."""
  axes.tick_params(labelsize=8, length=0)
  axes.set_frame_on(False)
  axes.set_axisbelow(True)


def speeds() -> Figure:
  figure = Figure(figsize=(4.0 * len(SPEEDS), 2.4), layout="constrained")
  for axes, (title, (name, of)) in zip(figure.subplots(1, len(SPEEDS)), SPEEDS.items(),
                                       strict=True):
    bars(axes, title, column(name, of))
  return figure


def memory() -> Figure:
  figure = Figure(figsize=(4.6, 2.6), layout="constrained")
  axes: Any = figure.subplots()
  values = column("microbatch", "peak MiB")
  places = range(len(values))
  axes.plot(places, list(values.values()), color=OWN, marker="o", markersize=4)
  axes.set_xticks(places, list(values))
  for place, value in zip(places, values.values(), strict=True):
    axes.annotate(f"{value:,.0f}", (place, value), (0, 6), textcoords="offset points", fontsize=8,
                  ha="center")
  axes.set_title("peak memory of an SN-GAN step, MiB", fontsize=9)
  axes.set_xlabel("microbatch.n", fontsize=8)
  axes.set_ylim(0, 1.2 * max(values.values()))
  axes.grid(axis="y", color="#e5e7eb")
  plain(axes)
  return figure


def sharded() -> Figure:
  """Draws the rows of one process: unsharded and sharded, and the formula as dashed lines."""
  table = record.read("sharded_memory")["tables"][0]
  rows = [(int(replicas), dict(zip(table["columns"], cells, strict=True)))
          for replicas, cells in table["rows"]]
  figure = Figure(figsize=(8.0, 2.6), layout="constrained")
  panels = [("MiB each", "memory per replica, MiB; dashed: the formula"),
            ("seconds/step", "seconds per step")]
  for axes, (column, title) in zip(figure.subplots(1, 2), panels, strict=True):
    for is_sharded, color in (("no", "#9ca3af"), ("yes", OWN)):
      points = [(replicas, row) for replicas, row in rows
                if row["processes"] == 1 and row["sharded"] == is_sharded]
      places = [replicas for replicas, _ in points]
      axes.plot(places, [row[column] for _, row in points], color=color, marker="o", markersize=4,
                label="sharded" if is_sharded == "yes" else "not sharded")
      if column == "MiB each":
        axes.plot(places, [row["formula"] for _, row in points], color=color, linestyle="--",
                  linewidth=1)
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("replicas", fontsize=8)
    axes.set_xticks(places)
    axes.set_ylim(0)
    axes.grid(axis="y", color="#e5e7eb")
    plain(axes)
  axes.legend(fontsize=8, frameon=False)
  return figure


def returns() -> Figure:
  """Draws a dot for each seed, and a bar for the 95 % interval of the mean, for each task."""
  tables = record.read("agent_evidence")["tables"]
  figure = Figure(figsize=(10.0, 3.2), layout="constrained")
  for axes, agent, table in zip(figure.subplots(1, 2, sharey=True), ("d4pg", "sac"), tables,
                                strict=True):
    *rows, _ = table["rows"]  # The last one is for all tasks.
    published = agent_evidence.published(agent, 100_000)
    for place, (task, cells) in enumerate(rows):
      ours = np.array([float(value) for value in cells[0].split(",")])
      for shift, color, seeds in ((-0.17, OWN, ours), (
          0.17, "#9ca3af", published[task.replace(" ", "_")])):
        low, high = agent_evidence.interval({"": seeds}, agent_evidence.mean)
        axes.bar(place + shift, high - low, 0.26, low, color=color, alpha=0.35)
        axes.scatter([place + shift] * len(seeds), seeds, 7, color)
    axes.set_xticks(range(len(rows)), [task.replace(" ", "\n", 1) for task, _ in rows])
    axes.set_title(f"{agent.upper()} at 100,000 steps: this project (left), published (right)",
                   fontsize=9)
    axes.grid(axis="y", color="#e5e7eb")
    plain(axes)
    axes.tick_params(axis="x", labelsize=7)
  return figure


def main(argv: list[str]) -> None:
  del argv
  for name, draw in (("speed", speeds), ("memory", memory), ("sharded", sharded),
                     ("returns", returns)):
    draw().savefig(DOCS / f"{name}.png", dpi=110)
    print(f"drawn: docs/{name}.png")


if __name__ == "__main__":
  app.run(main)
