"""The cost of reliability in the digits job: checkpoints, determinism, the guard, checks.

  python -m benchmarks.reliability_cost [--turns=7]

All times are CPU seconds of the process, which other work on the machine hardly affects.
`train.deterministic`: alternates the real command with and without it, each in its own process.
`Guard.signals`: alternates turns of a few steps with and without them. The other costs are too
small for that, and are timed alone: writing a checkpoint, relative to the time between two
checkpoints of the job; the guard's work on the numbers of a turn; and the checks of what is
`trainable`, at each call, of each variable's copies on 2 replicas, at each save, and of the scalars
of the step after a save, which `train.check_first_step` stores for a resumed run.
"""

import itertools
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from typing import Any

from benchmarks.record import Table
from benchmarks.usage import cpu_seconds

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("turns", 7, "How often each variant is timed.", lower_bound=1)

CONFIG = "configs/sngan_digits.gin"
STEPS_IN_TURN = 10
LOG_EVERY = 50  # In the runs with and without deterministic operations.


def medians(timed: dict[str, Callable[[], object]]) -> dict[str, float]:
  """Times calls in turns; returns the median seconds of each."""
  times: dict[str, list[float]] = {name: [] for name in timed}
  for turn in range(FLAGS.turns + 1):
    for name, call in timed.items():
      started = time.process_time()
      call()
      if turn:  # The first turn traces and warms up.
        times[name].append(time.process_time() - started)
  return {name: statistics.median(found) for name, found in times.items()}


def job(replicas: int) -> tuple:
  """Returns a replicator, the step of the job, and its batches."""
  from experiments.sngan import SNGAN
  from models.vision.builtin.digits import Digits
  from models.vision.images.image_source import classes_of
  from replicator import Replicator
  from replicator.app import config
  from replicator.step import context
  from replicator.training.inputs.inputs import InputContext
  from replicator.training.inputs.pipeline import pipeline

  import gin
  config.parse([CONFIG], [])
  size = gin.query_parameter("train.global_batch_size")
  context.run.steps = gin.query_parameter("train.steps")  # Schedules need it.
  replicator = Replicator("mirrored", logical_cpus=2) if replicas == 2 else Replicator()
  source = Digits()
  with replicator.scope():
    step = SNGAN(source.image_shape, classes_of(source))
  return replicator, step, iter(pipeline(
      source, InputContext(size, 0, 1, replicas, 0)))


def seconds_of_turns(folder: str) -> tuple[dict[str, float], int]:
  """Returns median seconds of turns of the job's step and its extras; and steps between saves."""
  replicator, step, batches = job(1)
  from replicator.strategies.compiled_step import CompiledStep
  from replicator.training.checkpoints.saver import Saver
  from replicator.training.checks.resumed_step import ResumedStep
  from replicator.training.divergence.diagnostics import Signals
  from replicator.training.divergence.guard import Guard

  import gin
  checkpoints, guard = Saver(pathlib.Path(folder) / "checkpoints", step), Guard()
  run: Any = types.SimpleNamespace(workdir=pathlib.Path(folder), step=0)
  next_steps = ResumedStep(run, {})
  numbers = itertools.count()
  logged: list[dict] = []  # By the last turn.

  def trains(function: CompiledStep) -> None:
    logged[:] = [function(next(numbers), next(batches)).fetch()[0] for _ in range(STEPS_IN_TURN)]

  def save() -> None:
    checkpoints.save(next(numbers), {})
    checkpoints.wait()

  def keep() -> None:
    """Does the extra work that comes with a save."""
    next_steps.saved(number := next(numbers))
    next_steps.finished(number, logged[-1])

  plain, with_signals = (
      CompiledStep(replicator, step, logs=True, hooks=[Signals(step)] * signals)
      for signals in (False, True))
  return medians({
      "plain": lambda: trains(plain), "signals": lambda: trains(with_signals), "saving": save,
      "guard": lambda: [guard.divergence_in(next(numbers), values) for values in logged],
      "keeping": keep,
      "others": lambda: [next_steps.finished(next(numbers), logged[-1]) for _ in range(1000)],
  }), gin.query_parameter("train.checkpoint_every")


def seconds_of_checks(folder: str) -> dict[str, float]:
  """Returns the median seconds of each check, of a step on 2 replicas, and of a whole save."""
  replicator, step, batches = job(2)
  from replicator.step.variables import variables_of
  from replicator.strategies.compiled_step import CompiledStep
  from replicator.strategies.tracing.trainable import Trainable
  from replicator.training.checkpoints.replica_checksums import parted
  from replicator.training.checkpoints.saver import Saver
  from replicator.training.divergence.diagnostics import Signals
  function = CompiledStep(replicator, step, 1, logs=True, hooks=[Signals(step)])
  trainable, variables = Trainable(step), variables_of(step)
  checkpoints = Saver(pathlib.Path(folder), step, replicator)

  def save() -> None:
    checkpoints.save(0, {})
    checkpoints.wait()

  return medians({"step": lambda: function(0, next(batches)).fetch(),
                  "trainable": trainable.flags, "save": save,
                  "copies": lambda: parted(variables, replicator)})


def seconds_of_steps(deterministic: bool, folder: str) -> float:
  """Returns the job's seconds between its first two log points."""
  settings = [f"train.steps = {2 * LOG_EVERY}", f"train.log_every = {LOG_EVERY}",
              "train.eval_every = 0", "train.checkpoint_every = 0",
              f"train.deterministic = {deterministic}"]
  command = [sys.executable, "-m", "experiments.sngan", f"--gin_file={CONFIG}",
             f"--workdir={folder}", *(f"--gin_param={setting}" for setting in settings)]
  with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
    assert process.stdout is not None
    first, second = (cpu_seconds(process.pid) for line in process.stdout
                     if line.startswith("step "))
  return second - first


def main(argv: list[str]) -> None:
  del argv
  with tempfile.TemporaryDirectory() as folder:
    checks = seconds_of_checks(f"{folder}/checks")  # First, because it splits the CPU.
    turns, every = seconds_of_turns(folder)
    step = turns["plain"] / STEPS_IN_TURN
    kept = turns["keeping"] / every + turns["others"] / 1000
    table = Table(f"what reliability costs the digits job, with a checkpoint every {every} steps",
                  {"milliseconds": ".3f", "share of the time": ".3%"})
    table.add("a step, without any", 1000 * step, None)
    table.add("a checkpoint", 1000 * turns["saving"], turns["saving"] / every / step)
    table.add("the next step's scalars, at a save", 1000 * turns["keeping"], kept / step)
    table.add("the guard, a step", 1000 * turns["guard"] / STEPS_IN_TURN,
              turns["guard"] / turns["plain"])
    table.add("Guard.signals = True, a step",
              1000 * (turns["signals"] - turns["plain"]) / STEPS_IN_TURN,
              turns["signals"] / turns["plain"] - 1)
    table.add("what is trainable, a step", 1000 * checks["trainable"],
              checks["trainable"] / checks["step"])
    table.add("whether replicas are equal, at a save", 1000 * checks["copies"],
              checks["copies"] / checks["step"] / every)
    times: dict[bool, list[float]] = {deterministic: [] for deterministic in (True, False)}
    for turn in range(FLAGS.turns):
      for deterministic, found in times.items():
        found.append(seconds_of_steps(deterministic, f"{folder}/{turn}-{deterministic}"))
    with_it, without = (statistics.median(times[d]) / LOG_EVERY for d in (True, False))
    table.add("train.deterministic = True, a step", 1000 * (with_it - without),
              with_it / without - 1)


if __name__ == "__main__":
  app.run(main)
