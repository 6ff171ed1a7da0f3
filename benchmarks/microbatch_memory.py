"""Peak memory and time of a training step in n micro-batches.

  python -m benchmarks.microbatch_memory [--batch_size=256]

Runs the whole step of `experiments.sngan` on 32-pixel images at half width, in one process for each
n. Peak memory is the highest resident size of the process while it trains, minus its size before
the first step, which TensorFlow itself, the weights and the optimizers' slots take.
"""

import subprocess
import sys
import time

from absl import app, flags

from benchmarks.memory import resident_mib
from replicator.console.quiet import import_tensorflow

FLAGS = flags.FLAGS
flags.DEFINE_list("n", ["1", "2", "4", "8", "16"], "Numbers of micro-batches.")
flags.DEFINE_integer("batch_size", 256, "Images of a step.", lower_bound=1)
flags.DEFINE_integer("steps", 3, "Timed steps.", lower_bound=1)
flags.DEFINE_boolean("alone", False, "Measure in this process, for the one n given.")


def measure() -> None:
  """Trains with n micro-batches; prints MiB and seconds a step."""
  import_tensorflow()
  import gin
  import keras
  import tensorflow as tf

  import replicator
  from experiments.sngan import SNGAN
  from replicator.step import microbatch  # noqa: F401  (for gin)

  runner = replicator.Replicator()
  for name in ("SNGANGenerator.width", "SNGANDiscriminator.width", "Encoder.width"):
    gin.bind_parameter(name, 0.5)
  gin.bind_parameter("microbatch.n", int(FLAGS.n[0]))
  with runner.scope():
    gan = SNGAN((32, 32, 3), num_classes=0, optimizer=lambda: keras.optimizers.Adam(2e-4),
                discriminator_updates=1, generator_batch_ratio=1)
  pixels = tf.random.uniform([FLAGS.batch_size, 32, 32, 3], 0, 256, tf.int32)
  batch = {"image": tf.cast(pixels, tf.uint8), "label": tf.zeros([FLAGS.batch_size], tf.int32)}
  before = resident_mib()
  runner.run(gan, batch)
  start = time.perf_counter()
  for _ in range(FLAGS.steps):
    float(runner.run(gan, batch)[0]["encoder"])
  seconds = (time.perf_counter() - start) / FLAGS.steps
  print(resident_mib() - before, seconds)


def main(argv: list[str]) -> None:
  del argv
  if FLAGS.alone:
    measure()
    return
  print(f"SN-GAN with an encoder, 32 pixels, half width, batch {FLAGS.batch_size}")
  print(f"{'n':>4} {'peak MiB':>10} {'seconds/step':>14}")
  for n in FLAGS.n:
    outcome = subprocess.run(
        [sys.executable, "-m", "benchmarks.microbatch_memory", "--alone", f"--n={n}",
         f"--batch_size={FLAGS.batch_size}", f"--steps={FLAGS.steps}"],
        stdout=subprocess.PIPE, text=True, check=True)
    mib, seconds = outcome.stdout.split()
    print(f"{n:>4} {float(mib):10.0f} {float(seconds):14.2f}", flush=True)


if __name__ == "__main__":
  app.run(main)
