"""Peak memory and time of a training step with micro-batches, or with recomputation.

  python -m benchmarks.step_memory --of=microbatch [--batch_size=256]
  python -m benchmarks.step_memory --of=recompute [--batch_size=32]

`microbatch` is the whole step of `experiments.sngan` on 32-pixel images with half of the channels,
in `n` micro-batches. `recompute` is a chain of SN-GAN's residual blocks of 64 x 64 pixels and 16
channels with batch normalization, and `replicator.recompute_grad` around every `n` blocks, or
around none.

Each `n` runs in one process. Peak memory is the highest resident size of the process during
training, minus its size before the first step, which includes TensorFlow, the weights and the
optimizers' slots.
"""

import json
import time
from collections.abc import Callable

from benchmarks.record import Table
from benchmarks.usage import measured_alone, resident_mib

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_enum("of", "microbatch", ["microbatch", "recompute"], "Which step.")
flags.DEFINE_list("n", None, "Numbers of micro-batches, or of blocks; 0 recomputes none.")
flags.DEFINE_integer("batch_size", None, "Images of a step.", lower_bound=1)
flags.DEFINE_integer("steps", 3, "Timed steps.", lower_bound=1)
flags.DEFINE_boolean("alone", False, "Measure in this process, for the one n given.")

BLOCKS = 16
DEFAULTS = {"microbatch": (256, ["1", "2", "4", "8", "16"]),  # The batch size, and `n`.
            "recompute": (32, ["0", "1", "2", "4"])}


def microbatch(n: int, batch_size: int) -> Callable[[], float]:
  """Returns a function that takes a step of SN-GAN with its encoder."""
  import replicator
  from experiments.sngan import SNGAN
  from models.vision.images.classes import Classes
  from replicator.step import microbatch  # noqa: F401  (for gin)

  import gin
  import keras
  import tensorflow as tf

  runner = replicator.Replicator()
  for name in ("SNGANGenerator.width_multiplier", "SNGANDiscriminator.width_multiplier",
               "Encoder.width_multiplier"):
    gin.bind_parameter(name, 0.5)
  gin.bind_parameter("microbatch.n", n)
  with runner.scope():
    gan = SNGAN((32, 32, 3), Classes(), optimizer=lambda: keras.optimizers.Adam(2e-4),
                discriminator_updates=1, generator_batch_ratio=1)
  pixels = tf.random.uniform([batch_size, 32, 32, 3], 0, 256, tf.int32)
  batch = {"image": tf.cast(pixels, tf.uint8), "label": tf.zeros([batch_size], tf.int32)}
  return lambda: float(runner.run(gan, batch)[0]["loss/encoder"])


def recompute(n: int, batch_size: int) -> Callable[[], float]:
  """Returns a function that takes a step of the chain of blocks."""
  import replicator
  from models.gan.networks.residual_blocks import DownBlock

  import keras
  import tensorflow as tf

  shape = batch_size, 64, 64, 16
  runner = replicator.Replicator()
  keras.utils.set_random_seed(0)
  with runner.scope():
    blocks = [DownBlock(16, halve=False, first=False, kernels=lambda size: "glorot_uniform",
                        spectral=False) for _ in range(BLOCKS)]
    for block in blocks:
      block.build(shape)
    optimizer = replicator.wrap_optimizer(
        keras.optimizers.SGD(1e-3), [v for block in blocks for v in block.trainable_variables])

  def chain(own: list) -> Callable[[tf.Tensor], tf.Tensor]:
    def call(x):
      for block in own:
        x = block(x, training=True)
      return x
    return call

  parts = ([replicator.recompute_grad(chain(blocks[i:i + n])) for i in range(0, BLOCKS, n)]
           if n else [chain(blocks)])

  def step(x: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
      for own in parts:
        x = own(x)
      loss = tf.reduce_mean(tf.square(x))
    optimizer.apply(tape.gradient(loss, optimizer.variables_updated))
    return loss

  images = tf.random.stateless_normal(shape, [0, 1])
  return lambda: float(runner.run(step, images)[0])


def measure(n: int, batch_size: int) -> None:
  """Trains; prints MiB, seconds per step, and the last loss, as JSON."""
  step = {"microbatch": microbatch, "recompute": recompute}[FLAGS.of](n, batch_size)
  before = resident_mib()
  step()
  start = time.perf_counter()
  for _ in range(FLAGS.steps):
    loss = step()
  seconds = (time.perf_counter() - start) / FLAGS.steps
  print(json.dumps({"mib": resident_mib() - before, "seconds": seconds, "loss": loss}))


def main(argv: list[str]) -> None:
  del argv
  batch_size, numbers = DEFAULTS[FLAGS.of]
  batch_size, numbers = FLAGS.batch_size or batch_size, FLAGS.n or numbers
  if FLAGS.alone:
    measure(int(numbers[0]), batch_size)
    return
  table = Table(f"{FLAGS.of}, batch {batch_size}",
                {"peak MiB": ",.0f", "seconds/step": ".2f", "loss": ".8f"}, "n")
  for n in numbers:
    found = measured_alone(
        "benchmarks.step_memory", "--alone", f"--of={FLAGS.of}", f"--n={n}",
        f"--batch_size={batch_size}", f"--steps={FLAGS.steps}")
    table.add(n, found["mib"], found["seconds"], found["loss"])


if __name__ == "__main__":
  app.run(main)
