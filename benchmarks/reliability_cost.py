"""The cost of reliability in the digits job: checkpoints, determinism, the guard, checks.

  python -m benchmarks.reliability_cost [--turns=7]

All times are CPU seconds of the process, which other work on the machine changes little.
`train.deterministic`: the real command with and without it, in turn, each in a process of its own.
`Guard.signals`: interleaved turns of a few steps with and without them. All else is too little for
a difference of turns, and is timed alone: a checkpoint, until it is written, relative to the time
between two checkpoints of the job; what the guard does with the numbers of a turn; and the checks:
what is `trainable`, at each call, and the copies of each variable on 2 replicas, at each save.
"""

import itertools
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from benchmarks.usage import cpu_seconds

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("turns", 7, "How often each variant is timed.", lower_bound=1)

CONFIG = "configs/sngan_digits.gin"
STEPS_IN_TURN = 10
LOG_EVERY = 50  # In the runs with and without deterministic operations.


def medians(timed: dict[str, Callable[[], object]]) -> dict[str, float]:
  """The median seconds of each call; they take turns."""
  times: dict[str, list[float]] = {name: [] for name in timed}
  for turn in range(FLAGS.turns + 1):
    for name, call in timed.items():
      started = time.process_time()
      call()
      if turn:  # The first one traces and warms up.
        times[name].append(time.process_time() - started)
  return {name: statistics.median(found) for name, found in times.items()}


def job(replicas: int) -> tuple:
  """A replicator, the step of the job, and its batches."""
  from experiments.sngan import SNGAN
  from models.vision.builtin.digits import Digits
  from replicator import Replicator
  from replicator.app import config
  from replicator.training.inputs.inputs import InputContext
  from replicator.training.inputs.pipeline import pipeline

  import gin
  config.parse([CONFIG], [])
  size = gin.query_parameter("train.global_batch_size")
  replicator = Replicator("mirrored", logical_cpus=2) if replicas == 2 else Replicator()
  source = Digits()
  with replicator.scope():
    step = SNGAN(source.image_shape, source.num_classes)
  return replicator, step, iter(pipeline(
      source, InputContext(size, 0, 1, replicas, 0)))


def seconds_of_turns(folder: str) -> tuple[dict[str, float], int]:
  """Median seconds of turns of the job's step and of what comes with it; steps between saves."""
  replicator, step, batches = job(1)
  from replicator.strategies.compiled_step import CompiledStep
  from replicator.training.checkpoints.saver import Saver
  from replicator.training.divergence.diagnostics import Signals
  from replicator.training.divergence.guard import Guard

  import gin
  checkpoints, guard = Saver(pathlib.Path(folder), step), Guard()
  numbers = itertools.count()
  logged: list[dict] = []  # By the last turn.

  def trains(function: CompiledStep) -> None:
    logged[:] = [function(next(numbers), next(batches)).fetch()[0] for _ in range(STEPS_IN_TURN)]

  def save() -> None:
    checkpoints.save(next(numbers), {})
    checkpoints.wait()

  plain, with_signals = (
      CompiledStep(replicator, step, logs=True, hooks=[Signals(step)] * signals)
      for signals in (False, True))
  return medians({
      "plain": lambda: trains(plain), "signals": lambda: trains(with_signals), "saving": save,
      "guard": lambda: [guard.divergence_in(next(numbers), values) for values in logged],
  }), gin.query_parameter("train.checkpoint_every")


def seconds_of_checks(folder: str) -> dict[str, float]:
  """The median seconds of each check, of a step of 2 replicas, and of a whole save."""
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
  """The job's seconds from its first log point to its second."""
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
    print(f"checks: what is trainable takes {checks['trainable'] / checks['step']:.3%} of a step, "
          f"the copies {1000 * checks['copies']:.0f} ms of a save of "
          f"{1000 * checks['save']:.0f} ms, {checks['copies'] / checks['step'] / every:.2%} of the "
          "time between two saves", flush=True)
    plain, guard = turns["plain"], turns["guard"]
    share = turns["saving"] / (every * plain / STEPS_IN_TURN)
    print(f"a checkpoint: {1000 * turns['saving']:.1f} ms; with one every {every} steps, of "
          f"{1000 * plain / STEPS_IN_TURN:.1f} ms, saving takes {share:.2%} of the training time")
    print(f"Guard.signals = True: {turns['signals'] / plain:.3f} of the time of a step without")
    print(f"the guard looks at the numbers of a step in {1e6 * guard / STEPS_IN_TURN:.0f} us, "
          f"{guard / plain:.3%} of the step", flush=True)
    times: dict[bool, list[float]] = {deterministic: [] for deterministic in (True, False)}
    for turn in range(FLAGS.turns):
      for deterministic, found in times.items():
        found.append(seconds_of_steps(deterministic, f"{folder}/{turn}-{deterministic}"))
    with_it, without = (statistics.median(times[d]) / LOG_EVERY for d in (True, False))
    print(f"train.deterministic = True: {1000 * with_it:.1f} ms a step, {1000 * without:.1f} ms "
          f"without, ratio {with_it / without:.3f}")


if __name__ == "__main__":
  app.run(main)
