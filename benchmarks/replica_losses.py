"""Draws the losses of the digits job on 1, 2 and 4 replicas, and the first picture of the README.

  python -m benchmarks.replica_losses [--steps=200] [--workdir=runs/replica_losses]

Trains `configs/sngan_digits.gin` on 1, 2 and 4 logical CPUs, in float64 and in float32, and draws
`docs/replica_losses.png`. Runs already in the workdir are not trained again. Then it combines the
losses with pictures of `docs/`, as `docs/first.png`.
"""

import os
import pathlib
import subprocess
import sys

from benchmarks.losses import Losses, differences, logged
from benchmarks.plots import plain

import matplotlib.image
import numpy as np
from absl import app, flags
from matplotlib.figure import Figure, SubFigure

FLAGS = flags.FLAGS
flags.DEFINE_integer("steps", 200, "Training steps.", lower_bound=2)
flags.DEFINE_string("workdir", "runs/replica_losses", "Where the runs are kept.")

DOCS = pathlib.Path(__file__).parents[1] / "docs"
REPLICAS = (1, 2, 4)
LINES = {1: ("-", 5.0, "#c7d2fe"), 2: ("-", 2.0, "#6366f1"), 4: (":", 1.6, "#111827")}
"""Style, width and color of a curve by the number of replicas: each shows below the next."""


def trained(replicas: int, precision: str) -> Losses:
  """Returns the losses of a run, which it trains unless the workdir has it."""
  workdir = pathlib.Path(FLAGS.workdir) / f"{precision}_{replicas}"
  if (workdir / "report.html").exists():
    return logged(workdir)
  settings = [f"train.steps = {FLAGS.steps}", f"train.precision = '{precision}'",
              "train.log_every = 1", "train.eval_every = 0", "Replicator.strategy = 'mirrored'",
              f"Replicator.logical_cpus = {replicas}"]
  subprocess.run([sys.executable, "-m", "experiments.sngan", "--gin_file=sngan_digits.gin",
                  f"--workdir={workdir}", *(f"--gin_param={each}" for each in settings)],
                 check=True, env=os.environ | {"CUDA_VISIBLE_DEVICES": "-1"})
  return logged(workdir)


def draw_losses(figure: Figure | SubFigure, runs: dict[str, dict[int, Losses]]) -> None:
  """Draws two panels: the losses in float64, and the differences in both precisions."""
  left, right = figure.subplots(1, 2)
  for replicas, losses in runs["float64"].items():
    style, width, color = LINES[replicas]
    for name in ("loss/discriminator", "loss/generator"):
      left.plot(range(1, FLAGS.steps + 1), losses[name], style, linewidth=width, color=color,
                label=f"{replicas} replica{'s' * (replicas > 1)}")
  left.set_title("losses of a GAN on 1, 2 and 4 replicas, in float64", fontsize=9)
  handles, names = left.get_legend_handles_labels()
  left.legend(handles[::2], names[::2], fontsize=8, frameon=False)
  for precision, color in (("float32", "#f59e0b"), ("float64", "#6366f1")):
    for replicas in REPLICAS[1:]:
      values = differences(runs[precision][replicas], runs[precision][1])
      right.semilogy(range(1, FLAGS.steps + 1), np.maximum(values, 1e-17), linewidth=1.2,
                     linestyle="-" if replicas == 2 else ":", color=color,
                     label=f"{precision}, {replicas} replicas")
  right.set_title("largest relative difference from 1 replica", fontsize=9)
  right.legend(fontsize=8, frameon=False)
  for axes in (left, right):
    axes.set_xlabel("step", fontsize=8)
    axes.grid(axis="y", color="#e5e7eb")
    plain(axes)


def show(figure: SubFigure, file: str, title: str, cut: tuple[slice, slice]) -> None:
  """Shows part of a picture from `docs/`."""
  axes = figure.subplots()
  axes.imshow(matplotlib.image.imread(DOCS / file)[cut])
  axes.set_title(title, fontsize=9)
  axes.axis("off")


def main(argv: list[str]) -> None:
  del argv
  runs = {precision: {replicas: trained(replicas, precision) for replicas in REPLICAS}
          for precision in ("float64", "float32")}
  for precision, by_replicas in runs.items():
    for replicas in REPLICAS[1:]:
      values = differences(by_replicas[replicas], by_replicas[1])
      print(f"{precision}, {replicas} replicas: {values[:5].max():.1e} in 5 steps, "
            f"{values.max():.1e} in {FLAGS.steps}")
  figure = Figure(figsize=(9, 3), layout="constrained")
  draw_losses(figure, runs)
  figure.savefig(DOCS / "replica_losses.png", dpi=110)

  figure = Figure(figsize=(10, 4.3), layout="constrained")
  top, bottom = figure.subfigures(2, 1, height_ratios=(1, 2))
  show(top, "walker.png", "an agent that learned to walk", np.s_[14:134])
  left, right = bottom.subfigures(1, 2, width_ratios=(1, 2.6))
  show(left, "shapes.png", "samples of a GAN", np.s_[:, :265])
  draw_losses(right, runs)
  figure.savefig(DOCS / "first.png", dpi=110)


if __name__ == "__main__":
  app.run(main)
