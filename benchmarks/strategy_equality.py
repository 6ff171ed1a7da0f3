"""Compares the losses of the digits job under each strategy with those on one device.

  python -m benchmarks.strategy_equality [--precision=float32] [--steps=20]

Runs the real command of the job under each strategy, in separate processes, and prints the largest
relative difference of any logged loss, over all steps and over the first five. If there is a GPU,
it also runs the job on the GPU and on two halves of it; all other runs use the CPU.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

from benchmarks.losses import Losses, differences, logged
from benchmarks.record import Table
from replicator.training.workdir.run_summary import gpus

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("precision", "float64", "Keras dtype policy.")
flags.DEFINE_integer("steps", 20, "Training steps.", lower_bound=1)

LAUNCH = [sys.executable, "-m", "replicator", "launch", "--workers=2"]
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

HALVES = """
import replicator
import tensorflow as tf
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("GPU")[0], [tf.config.LogicalDeviceConfiguration(6000)] * 2)
from experiments import sngan
from replicator import app
app.run(sngan.train_sngan)
"""
"""Splits a GPU into two devices of 6,000 MiB, as no gin file can, and trains."""

ON_GPU: dict[str, list[str]] = {
    "one GPU": ["Replicator.strategy = 'one_device'"],
    "one GPU, XLA": ["Replicator.strategy = 'one_device'", "Replicator.jit_compile = True"],
    "GPU in halves, mirrored": ["Replicator.strategy = 'mirrored'"],
    "GPU in halves, mirrored, XLA": ["Replicator.strategy = 'mirrored'",
                                     "Replicator.jit_compile = True"],
}


def losses(name: str, folder: str) -> Losses:
  """Trains one run; returns its losses."""
  launcher, bindings = ([], ON_GPU[name]) if name in ON_GPU else RUNS[name]
  program = ["-c", HALVES] if "halves" in name else ["-m", "experiments.sngan"]
  workdir = pathlib.Path(folder) / name.replace(" ", "_").replace(",", "")
  settings = [f"train.steps = {FLAGS.steps}", f"train.precision = '{FLAGS.precision}'",
              "train.log_every = 1", "train.eval_every = 0", "train.checkpoint_every = 0",
              *bindings]
  subprocess.run([*launcher, sys.executable, *program,
                  "--gin_file=configs/sngan_digits.gin", f"--workdir={workdir}",
                  *(f"--gin_param={setting}" for setting in settings)],
                 check=True, stdout=subprocess.DEVNULL,
                 env=os.environ | ({} if name in ON_GPU else {"CUDA_VISIBLE_DEVICES": "-1"}))
  return logged(workdir)


def main(argv: list[str]) -> None:
  del argv
  table = Table(f"{FLAGS.steps} steps of configs/sngan_digits.gin, {FLAGS.precision}, against one "
                "device: the largest relative difference of a loss",
                {"first 5 steps": ".1e", "all steps": ".1e"})
  with tempfile.TemporaryDirectory() as folder:
    reference = losses("one device", folder)
    for name in [*list(RUNS)[1:], *(ON_GPU if gpus() else ())]:
      found = differences(losses(name, folder), reference)
      table.add(name, found[:5].max(), found.max())


if __name__ == "__main__":
  app.run(main)
