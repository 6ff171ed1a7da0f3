"""The results of the first-step check, which compares each run's first step with one device.

  python -m benchmarks.first_steps [--of=maml,sngan] [--ways=bfloat16] [--seed=0] [--processes=2]

Runs one step of each experiment in a small configuration, which trains the same on any number of
replicas: split across replicas and into micro-batches, in float32 and in half precision. It prints
the relative difference that each run reports, and every warning, which is a false alarm. Networks
and batches are those of the configuration; agents act less before they learn.
"""

import concurrent.futures
import contextlib
import json
import re
import statistics
import subprocess
import sys
import tempfile

from benchmarks.record import Table
from benchmarks.usage import measured_alone
from replicator.app import config
from replicator.console.error_line import in_one_line
from replicator.doctor.experiment import load
from replicator.strategies import strategy
from replicator.training.callbacks.callback import Callback, installed
from replicator.training.prepared import Enough
from replicator.training.run import Run

import keras
import tensorflow as tf
from absl import app, flags

CONFIGURATIONS = {
    "bigan": "bigan_digits", "bigbigan": "bigbigan_digits", "cyclegan": "cyclegan_shapes16",
    "d4pg": "d4pg_pendulum", "diffusion": "diffusion_digits", "dmd2": "dmd2_gaussians",
    "domain_adaptation": "domain_adaptation_digits", "dqn": "dqn_cartpole", "gan": "dcgan_digits",
    "logan": "logan_digits", "maml": "maml_sinusoids", "mpo": "mpo_pendulum",
    "ppo": "ppo_cartpole", "r3gan": "r3gan_stacked_digits", "resnet": "resnet_digits",
    "sac": "sac_pendulum", "self_supervision": "self_supervision_digits", "sngan": "sngan_digits",
    "td3": "td3_pendulum", "vqgan": "vqgan_shapes32", "world_model": "world_model_pendulum"}
QUICK = ["train.steps = 1", "train.steps_per_call = 1", "train.log_every = 1",
         "train.eval_every = 0", "train.checkpoint_every = 0", "Replicator.jit_compile = False"]
ACTS_LESS = ["RateLimiter.learning_starts = 300", "Exploration.random_steps = 300"]
WITH_REPLAY = ("d4pg", "dqn", "mpo", "sac", "td3", "world_model")

MIRRORED = {n: ["Replicator.strategy = 'mirrored'", f"Replicator.logical_cpus = {n}"]
            for n in (2, 4)}
PROCESSES = "2 processes"
WAYS = {
    "2 replicas": MIRRORED[2],
    "4 replicas": MIRRORED[4],
    "2 micro-batches": ["Replicator.strategy = 'one_device'", "microbatch.n = 2"],
    "both": [*MIRRORED[2], "microbatch.n = 2"],
    "bfloat16": [*MIRRORED[2], "train.precision = 'mixed_bfloat16'"],
    "float16": [*MIRRORED[2], "train.precision = 'mixed_float16'"]}
IN_PROCESSES = ("d4pg", "maml", "resnet", "sngan")  # A few, since each takes as long again.

FLAGS = flags.FLAGS
flags.DEFINE_list("of", list(CONFIGURATIONS), "The experiments.")
flags.DEFINE_list("ways", [*WAYS, PROCESSES], "How their steps are divided and rounded.")
flags.DEFINE_integer("seed", 0, "Of the runs.")
flags.DEFINE_integer("processes", 2, "How many experiments run at a time.", lower_bound=1)
flags.DEFINE_string("alone", None, "Runs this experiment, and prints what it said as JSON.")

SAID = re.compile(r"first step: same as on one device.* (\S+)$")
REPORT = re.compile("first step: |first step is not")


class Listener(Callback):
  """Callback that ends a run once it reports its first-step check, or has made the step."""

  every = 1
  words = ""

  def begin(self, run: Run) -> None:
    """Intercepts the run's messages."""
    run.say = self._hear  # type: ignore[method-assign]

  def _hear(self, line: str) -> None:
    if REPORT.search(line):
      self.words = words_of(line)
      raise Enough

  def after_steps(self, run: Run) -> None:
    """Runs after the first step."""
    raise Enough


def words_of(line: str) -> str:
  """Returns the difference in a line, or else the line; empty for an empty line."""
  found = SAID.search(line)
  return found[1] if found else line


def settings(experiment: str, way: list[str]) -> list[str]:
  return [*QUICK, *(ACTS_LESS if experiment in WITH_REPLAY else []), *way,
          f"train.seed = {FLAGS.seed}"]


def runs_of(experiment: str) -> dict[str, str]:
  """Returns the reports of an experiment's runs, by way; all run in this process."""
  main = load(f"experiments.{experiment}")
  tf.config.threading.set_intra_op_parallelism_threads(1)  # Several processes share the cores.
  strategy.make("mirrored", max(MIRRORED))  # Splits the CPU; the other ways use part of it.
  said = {}
  for name, way in WAYS.items():
    if name not in FLAGS.ways:
      continue
    keras.backend.clear_session()
    listener = Listener()
    with tempfile.TemporaryDirectory() as workdir, installed([listener]), (
        contextlib.suppress(Enough)):
      try:
        config.parse([f"configs/{CONFIGURATIONS[experiment]}.gin"], [],
                     settings(experiment, way))
        main(workdir)
      except Exception as error:
        listener.words = f"error: {in_one_line(error)}"
    said[name] = listener.words
    print(f"{experiment}, {name}: {said[name]}", file=sys.stderr, flush=True)
  return said


def in_processes(experiment: str) -> str:
  """Returns the report of the chief of two processes."""
  with tempfile.TemporaryDirectory() as workdir:
    done = subprocess.run(
        [sys.executable, "-m", "replicator", "launch", "--workers=2", "--", sys.executable, "-m",
         f"experiments.{experiment}", f"--workdir={workdir}",
         f"--gin_file=configs/{CONFIGURATIONS[experiment]}.gin",
         *(f"--gin_param={each}" for each in settings(
             experiment, ["Replicator.strategy = 'multi_worker_mirrored'"]))],
        check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
  return next((words_of(line) for line in done.stdout.splitlines()
               if REPORT.search(line) or "error: " in line), "")


def measured(experiment: str) -> dict[str, str]:
  """Returns the reports of all runs of an experiment, in other processes."""
  said = measured_alone("benchmarks.first_steps", f"--alone={experiment}", f"--seed={FLAGS.seed}",
                        f"--ways={','.join(FLAGS.ways)}")
  if experiment in IN_PROCESSES and PROCESSES in FLAGS.ways:
    said[PROCESSES] = in_processes(experiment)
  return said


def is_number(words: str) -> bool:
  return bool(re.match(r"\d", words))


def cell(words: str | None) -> str:
  """Formats a table cell: a difference, or the message instead."""
  if not words:
    return "" if words is None else "--"
  return words if is_number(words) else "WARNS" if "warning" in words else "NONE"


def main(argv: list[str]) -> None:
  del argv
  if FLAGS.alone:
    print(json.dumps(runs_of(FLAGS.alone)))
    return
  columns, others = FLAGS.ways, []
  found: dict[str, list[float]] = {way: [] for way in columns}
  table = Table(f"relative difference of the first step from one device, seed {FLAGS.seed}",
                dict.fromkeys(columns, ".1e"))
  with concurrent.futures.ThreadPoolExecutor(FLAGS.processes) as pool:
    for name, said in zip(FLAGS.of, pool.map(measured, FLAGS.of), strict=True):
      table.add(name, *(cell(said.get(way)) for way in columns))
      others += [f"{name}, {way}: {words}" for way, words in said.items()
                 if words and not is_number(words)]
      for way, words in said.items():
        found[way] += [float(words)] if is_number(words) else []
  for label, pick in (("runs", len), ("median", statistics.median), ("largest", max)):
    table.add(label, *(f"{pick(numbers):.2g}" if numbers else None for numbers in found.values()))
  print(f"{sum(map(len, found.values()))} runs agreed with one device; of the others:", *others,
        sep="\n")


if __name__ == "__main__":
  app.run(main)
