"""What exact resume costs the digits job: its checkpoints, and deterministic operations.

  python -m benchmarks.checkpoint_cost [--turns=7]

Saving: turns of a few steps with and without a checkpoint at their beginning, which is written
while they run, interleaved; the difference of the medians is what a checkpoint costs, and its
share is that of the time between two checkpoints of the job. `train.deterministic`: the real
command with and without it, in turn, each in a process of its own.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("turns", 7, "How often each variant is timed.", lower_bound=1)

CONFIG = "configs/sngan_digits.gin"
STEPS_IN_TURN = 20
LOG_EVERY = 50  # Of the runs with and without deterministic operations.


def saving(folder: str) -> tuple[float, float, int]:
  """Seconds of a step, seconds that a checkpoint adds, and steps from one to the next."""
  from replicator import quiet
  quiet.import_tensorflow()
  import gin

  from experiments.sngan import SNGAN
  from models.vision.digits import Digits
  from replicator import Replicator, config, inputs
  from replicator.checkpoint import Checkpoints
  from replicator.training_function import TrainingFunction
  config.parse([CONFIG], [])
  size = gin.query_parameter("train.global_batch_size")
  source, replicator = Digits(), Replicator()
  with replicator.scope():
    step = SNGAN(source.image_shape, source.num_classes)
  function = TrainingFunction(replicator, step, 1)
  batches = iter(inputs.batches(source, inputs.InputContext(size, 0, 1, 1, 0), 0).batch(1))
  checkpoints = Checkpoints(pathlib.Path(folder), step)
  times: dict[bool, list[float]] = {False: [], True: []}
  number = 0
  for turn in range(2 * FLAGS.turns + 2):
    saves = turn % 2 == 1
    started = time.perf_counter()
    if saves:
      checkpoints.save(number, {})
    for _ in range(STEPS_IN_TURN):
      function(number, next(batches)).fetch()
      number += 1
    if turn >= 2:  # The first two trace and warm up.
      times[saves].append(time.perf_counter() - started)
    checkpoints.wait()
  without, with_one = (statistics.median(times[saves]) for saves in (False, True))
  return (without / STEPS_IN_TURN, with_one - without,
          gin.query_parameter("train.checkpoint_every"))


def seconds_of_steps(deterministic: bool, folder: str) -> float:
  """The job's seconds from its first log point to its third."""
  settings = [f"train.steps = {3 * LOG_EVERY}", f"train.log_every = {LOG_EVERY}",
              "train.eval_every = 0", "train.checkpoint_every = 0",
              f"train.deterministic = {deterministic}"]
  subprocess.run([sys.executable, "-m", "experiments.sngan", f"--gin_file={CONFIG}",
                  f"--workdir={folder}", *(f"--gin_param={setting}" for setting in settings)],
                 check=True, stdout=subprocess.DEVNULL)
  lines = (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()
  seconds = [json.loads(line)["seconds"] for line in lines]
  return seconds[-1] - seconds[0]


def main(argv: list[str]) -> None:
  del argv
  with tempfile.TemporaryDirectory() as folder:
    times: dict[bool, list[float]] = {deterministic: [] for deterministic in (True, False)}
    for turn in range(FLAGS.turns):
      for deterministic, found in times.items():
        found.append(seconds_of_steps(deterministic, f"{folder}/{turn}-{deterministic}"))
    with_it, without = (statistics.median(times[d]) / (2 * LOG_EVERY) for d in (True, False))
    print(f"train.deterministic = True: {1000 * with_it:.1f} ms a step, {1000 * without:.1f} ms "
          f"without, ratio {with_it / without:.3f}")
    step, checkpoint, every = saving(folder)
    print(f"a checkpoint: {1000 * checkpoint:.1f} ms, a step: {1000 * step:.1f} ms; with one every "
          f"{every} steps saving takes {checkpoint / (every * step):.2%} of the training time")


if __name__ == "__main__":
  app.run(main)
