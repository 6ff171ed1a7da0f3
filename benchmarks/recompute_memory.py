"""Peak memory and time of a training step whose network is recomputed for the gradient.

  python -m benchmarks.recompute_memory [--batch_size=32]

The network is a chain of SN-GAN's residual blocks of 64 x 64 pixels and 16 channels, with batch
normalization, or with spectral normalization (`--norm=spectral`). `replicator.recompute_grad` is
around every `part` blocks, or around none; each runs in one process. Peak memory is the highest
resident size of the process while it trains, minus its size before the first step.
"""

import subprocess
import sys
import time

from absl import app, flags

from benchmarks.memory import resident_mib
from replicator.console.quiet import import_tensorflow

FLAGS = flags.FLAGS
flags.DEFINE_list("part", ["0", "1", "2", "4"], "Blocks that are recomputed together; 0 for none.")
flags.DEFINE_integer("batch_size", 32, "Images of a step.", lower_bound=1)
flags.DEFINE_integer("blocks", 16, "Blocks of the network.", lower_bound=1)
flags.DEFINE_integer("steps", 3, "Timed steps.", lower_bound=1)
flags.DEFINE_enum("norm", "batch", ["batch", "spectral"], "The blocks' normalization.")
flags.DEFINE_boolean("jit_compile", False, "Compile the step with XLA.")
flags.DEFINE_boolean("alone", False, "Measure in this process, for the one part given.")


def measure() -> None:
  """Trains with parts of so many blocks; prints MiB, seconds a step, and the last loss."""
  import_tensorflow()
  import keras
  import tensorflow as tf

  import replicator
  from models.gan.networks.sngan_blocks import down_block

  part, shape = int(FLAGS.part[0]), (FLAGS.batch_size, 64, 64, 16)
  runner = replicator.Replicator(jit_compile=FLAGS.jit_compile)
  keras.utils.set_random_seed(0)
  with runner.scope():
    blocks = [down_block(16, halve=False, first=False, spectral=FLAGS.norm == "spectral")
              for _ in range(FLAGS.blocks)]
    for block in blocks:
      block.build(shape)
    weights = [v for block in blocks for v in block.trainable_variables]
    optimizer = replicator.wrap_optimizer(keras.optimizers.SGD(1e-3), weights)

  def chain(own):
    def call(x):
      for block in own:
        x = block(x, training=True)
      return x
    return call

  parts = ([replicator.recompute_grad(chain(blocks[i:i + part]))
            for i in range(0, len(blocks), part)] if part else [chain(blocks)])

  def step(x):
    with tf.GradientTape() as tape:
      for own in parts:
        x = own(x)
      loss = tf.reduce_mean(tf.square(x))
    optimizer.apply(tape.gradient(loss, optimizer.variables_updated))
    return loss

  train = runner.compile(lambda x: runner.on_replicas(step, tf.constant(0, tf.int64), (x,)))
  images = tf.random.stateless_normal(shape, [0, 1])
  before = resident_mib()
  train(images)
  start = time.perf_counter()
  for _ in range(FLAGS.steps):
    loss = float(train(images))
  seconds = (time.perf_counter() - start) / FLAGS.steps
  print(resident_mib() - before, seconds, loss)


def main(argv: list[str]) -> None:
  del argv
  if FLAGS.alone:
    measure()
    return
  print(f"{FLAGS.blocks} residual blocks, {FLAGS.norm} normalization, batch {FLAGS.batch_size}")
  print(f"{'recomputed':>12} {'peak MiB':>10} {'seconds/step':>14} {'loss':>12}")
  for part in FLAGS.part:
    outcome = subprocess.run(
        [sys.executable, "-m", "benchmarks.recompute_memory", "--alone", f"--part={part}",
         *(f"--{name}={FLAGS[name].value}"
           for name in ("batch_size", "blocks", "steps", "norm", "jit_compile"))],
        stdout=subprocess.PIPE, text=True, check=True)
    mib, seconds, loss = map(float, outcome.stdout.split())
    name = f"{part} blocks" if int(part) else "nothing"
    print(f"{name:>12} {mib:10.0f} {seconds:14.2f} {loss:12.8f}", flush=True)


if __name__ == "__main__":
  app.run(main)
