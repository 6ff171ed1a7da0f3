"""Differences between the losses of the digits job under other strategies and on one device.

  python -m benchmarks.strategy_equality [--precision=float32] [--steps=20]

Runs the real command of the job under each strategy, in processes of its own, and prints the
largest relative difference of any logged loss, over all steps and over the first five.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("precision", "float64", "Keras dtype policy.")
flags.DEFINE_integer("steps", 20, "Training steps.", lower_bound=1)

LAUNCH = [sys.executable, "-m", "replicator.launch", "--workers=2"]
RUNS: dict[str, tuple[list[str], list[str]]] = {
    "one device": ([], ["Replicator.strategy = 'one_device'"]),
    "mirrored, 2 replicas": ([], ["Replicator.strategy = 'mirrored'",
                                  "Replicator.logical_cpus = 2"]),
    "mirrored, 4 replicas": ([], ["Replicator.strategy = 'mirrored'",
                                  "Replicator.logical_cpus = 4"]),
    "central storage, 2 replicas": ([], ["Replicator.strategy = 'central_storage'",
                                         "Replicator.logical_cpus = 2"]),
    "multi-worker mirrored, 2 processes": ([*LAUNCH, "--"],
                                           ["Replicator.strategy = 'multi_worker_mirrored'"]),
}


def losses(name: str, folder: str) -> list[dict[str, float]]:
  """The rows of `metrics.jsonl` of one run."""
  launcher, bindings = RUNS[name]
  workdir = pathlib.Path(folder) / name.replace(" ", "_").replace(",", "")
  settings = [f"train.steps = {FLAGS.steps}", f"train.precision = '{FLAGS.precision}'",
              "train.log_every = 1", "train.eval_every = 0", "train.checkpoint_every = 0",
              *bindings]
  subprocess.run([*launcher, sys.executable, "-m", "experiments.sngan",
                  "--gin_file=configs/sngan_digits.gin", f"--workdir={workdir}",
                  *(f"--gin_param={setting}" for setting in settings)],
                 check=True, stdout=subprocess.DEVNULL)
  return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def difference(rows: list[dict[str, float]], others: list[dict[str, float]]) -> float:
  """The largest relative difference of a loss at a step that both logged."""
  by_step = {row["step"]: row for row in others}
  return max(abs(row[name] - by_step[row["step"]][name]) / abs(row[name])
             for row in rows for name in ("discriminator", "generator", "encoder"))


def main(argv: list[str]) -> None:
  del argv
  print(f"{FLAGS.steps} steps of configs/sngan_digits.gin, {FLAGS.precision}, against one device")
  print(f"{'':36} {'first 5 steps':>14} {'all steps':>11}")
  with tempfile.TemporaryDirectory() as folder:
    reference = losses("one device", folder)
    for name in list(RUNS)[1:]:
      rows = losses(name, folder)
      first, all_steps = difference(reference[:5], rows), difference(reference, rows)
      print(f"{name:36} {first:14.1e} {all_steps:11.1e}", flush=True)


if __name__ == "__main__":
  app.run(main)
