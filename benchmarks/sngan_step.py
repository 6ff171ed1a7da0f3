"""Examples per second of the 32 pixel SN-GAN training step, against two peers.

  python -m benchmarks.sngan_step [--precision=mixed_bfloat16]

One step is one discriminator update and one generator update (batch 64, half width, hinge loss,
Adam, two threads) of the same networks:

  ours     `experiments.sngan` without its encoder: resampling folded into the convolutions
  keras    `benchmarks.sngan_keras`, plain Keras 3 layers in a tf.function
  pytorch  `benchmarks.sngan_torch`, eager with channels_last, where torch is installed

Every contender is a process of its own, so that their thread pools do not meet. They take turns
of a few steps, round after round, so that a slow minute of the machine slows all of them; the
table gives medians over the turns, and ratios of those medians.
"""

import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_enum("precision", "float32", ["float32", "mixed_bfloat16"],
                  "Keras dtype policy; PyTorch uses autocast for bfloat16.")
flags.DEFINE_integer("rounds", 15, "Turns of every contender.", lower_bound=1)
flags.DEFINE_integer("steps", 3, "Steps of one turn.", lower_bound=1)
flags.DEFINE_integer("batch_size", 64, "Real images of a step.", lower_bound=1)
flags.DEFINE_float("width", 0.5, "Multiplies the channels of the published networks.")
flags.DEFINE_integer("threads", 2, "Threads of every contender.", lower_bound=1)
flags.DEFINE_enum("contender", None, ["ours", "keras", "pytorch"],
                  "Only take turns as this contender, on request over stdin.")


def ours() -> Callable[[], float]:
  """The step of `experiments.sngan`, less the encoder's update, which the peers do not have."""
  import gin
  import keras
  import tensorflow as tf

  import replicator
  from experiments.sngan import SNGAN
  from models.vision.images import to_unit_range

  class TwoNetworks(SNGAN):
    def __call__(self, batch):
      images = to_unit_range(batch["image"], keras.config.floatx())
      loss, *_ = self._update_discriminator(images, batch["label"])
      self._update_generator(FLAGS.batch_size)
      return loss

  keras.config.set_dtype_policy(FLAGS.precision)
  gin.bind_parameter("Generator.width", FLAGS.width)
  gin.bind_parameter("Discriminator.width", FLAGS.width)
  runner = replicator.Replicator()
  with runner.scope():
    gan = TwoNetworks((32, 32, 3), num_classes=0,
                      optimizer=lambda: keras.optimizers.Adam(2e-4, beta_1=0.0, beta_2=0.9))
  pixels = tf.random.uniform([FLAGS.batch_size, 32, 32, 3], 0, 256, tf.int32)
  batch = {"image": tf.cast(pixels, tf.uint8),
           "label": tf.zeros([FLAGS.batch_size], tf.int32)}
  return lambda: float(runner.run(gan, batch)[0])


def take_turns() -> None:
  """A contender's process: prints the seconds of one turn for every line it reads."""
  if FLAGS.contender == "pytorch":
    import torch

    from benchmarks import sngan_torch
    torch.set_num_threads(FLAGS.threads)
    step = sngan_torch.make_step(FLAGS.batch_size, FLAGS.width, FLAGS.precision)
  else:
    from replicator.quiet import import_tensorflow
    import_tensorflow()
    import tensorflow as tf
    tf.config.threading.set_intra_op_parallelism_threads(FLAGS.threads)
    if FLAGS.contender == "ours":
      step = ours()
    else:
      from benchmarks import sngan_keras
      step = sngan_keras.make_step(FLAGS.batch_size, FLAGS.width, FLAGS.precision)
  for _ in range(2):  # tracing, and what memory and threads need to settle
    loss = step()
  for _ in sys.stdin:
    start = time.perf_counter()
    for _ in range(FLAGS.steps):
      loss = step()
    print(json.dumps({"seconds": time.perf_counter() - start, "loss": loss}), flush=True)


class Contender:
  """A process that takes a turn when asked."""

  def __init__(self, name: str):
    self.name = name
    self.rates: list[float] = []
    self._process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.sngan_step", *sys.argv[1:], f"--contender={name}"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": str(FLAGS.threads), "TF_CPP_MIN_LOG_LEVEL": "3"})

  def turn(self) -> float:
    """Examples per second of one turn."""
    assert self._process.stdin and self._process.stdout
    try:
      self._process.stdin.write("go\n")
      self._process.stdin.flush()
      answer = self._process.stdout.readline()
    except BrokenPipeError:
      answer = ""
    if not answer:
      raise SystemExit(f"{self.name} failed; its error stands above")
    return FLAGS.batch_size * FLAGS.steps / json.loads(answer)["seconds"]

  def close(self) -> None:
    self._process.communicate()


def main(argv: list[str]) -> None:
  del argv
  if FLAGS.contender:
    take_turns()
    return
  names = ["ours", "keras"]
  if importlib.util.find_spec("torch"):
    names.append("pytorch")
  else:
    print("torch is not installed: no comparison with PyTorch")
  versions = {package: importlib.metadata.version(package)
              for package in ("tensorflow", "keras", "torch")
              if importlib.util.find_spec(package)}
  print(f"{_cpu_model()}, {os.cpu_count()} cores, {FLAGS.threads} threads each;",
        ", ".join(f"{name} {version}" for name, version in versions.items()))
  contenders = [Contender(name) for name in names]
  for contender in contenders:  # a first turn not counted: each waits until it has started
    contender.turn()
  for _ in range(FLAGS.rounds):
    for contender in contenders:
      contender.rates.append(contender.turn())
  for contender in contenders:
    contender.close()
  print(f"SN-GAN 32 px step, batch {FLAGS.batch_size}, width {FLAGS.width}, {FLAGS.precision}, "
        f"{FLAGS.rounds} turns of {FLAGS.steps} steps")
  print(f"{'':10} {'examples/s':>10} {'lowest':>8} {'highest':>8} {'ours is':>10}")
  reference = statistics.median(contenders[0].rates)
  for contender in contenders:
    median = statistics.median(contender.rates)
    print(f"{contender.name:10} {median:10.1f} {min(contender.rates):8.1f} "
          f"{max(contender.rates):8.1f} {reference / median:9.2f}x")


def _cpu_model() -> str:
  try:
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
      return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
  except (OSError, StopIteration):
    return platform.processor() or platform.machine()


if __name__ == "__main__":
  app.run(main)
