"""Examples per second of the 32 pixel SN-GAN training step, against two peers.

  python -m benchmarks.sngan_step [--precision=mixed_bfloat16] [--replicas=2]

One step is one discriminator update and one generator update (batch 64, half of the channels, hinge
loss, Adam, two threads) of the same networks:

  ours     `experiments.sngan` without its encoder: resampling folded into the convolutions
  xla      the same, compiled by XLA
  keras    `benchmarks.sngan_keras`, plain Keras 3 layers in a tf.function
  pytorch  `benchmarks.sngan_torch`, eager with channels_last, where torch is installed

All compute on the GPU, if TensorFlow and PyTorch see one. With --replicas=2 ours is instead
compared with itself under XLA alone, both on 2 logical CPUs.

Each contender runs in its own process, so that thread pools do not compete. They take turns of a
few steps, round after round, so that a slow minute of the machine slows all contenders. The table
has medians over the turns, and ratios of these medians.
"""

import importlib
from collections.abc import Callable

from benchmarks import turns

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_enum("precision", "float32", ["float32", "mixed_bfloat16"],
                  "Keras dtype policy; PyTorch uses autocast for bfloat16.")
flags.DEFINE_integer("rounds", 15, "Turns of every contender.", lower_bound=1)
flags.DEFINE_integer("steps", 3, "Steps of one turn.", lower_bound=1)
flags.DEFINE_integer("batch_size", 64, "Real images of a step.", lower_bound=1)
flags.DEFINE_float("width_multiplier", 0.5, "Multiplies the channels of the published networks.")
flags.DEFINE_integer("replicas", 1, "Compare ours with and without XLA on so many logical CPUs.",
                     lower_bound=1)
turns.define_flags(["ours", "xla", "keras", "pytorch"])


def ours() -> Callable[[], float]:
  """The step of `experiments.sngan` without the encoder's update, which the peers do not have."""
  import replicator
  from experiments.sngan import SNGAN
  from models.gan.latents.distributions import draw
  from models.vision.images.classes import NO_CLASSES
  from models.vision.images.image_source import to_unit_range

  import gin
  import keras
  import tensorflow as tf

  class TwoNetworks(SNGAN):
    def __call__(self, batch):
      images = to_unit_range(batch["image"], keras.config.floatx())
      size = images.shape[0]
      loss, *_ = self.optimizers["discriminator"].minimize(
          self._discriminator_loss, images, batch["label"], *draw(self, size))
      self.optimizers["generator"].minimize(self._generator_loss, *draw(self, size))
      return loss

  keras.config.set_dtype_policy(FLAGS.precision)
  gin.bind_parameter("SNGANGenerator.width_multiplier", FLAGS.width_multiplier)
  gin.bind_parameter("SNGANDiscriminator.width_multiplier", FLAGS.width_multiplier)
  mirrored = ("mirrored", FLAGS.replicas) if FLAGS.replicas > 1 else ()
  runner = replicator.Replicator(*mirrored, jit_compile=FLAGS.contender == "xla")
  with runner.scope():
    gan = TwoNetworks((32, 32, 3), classes=NO_CLASSES,
                      optimizer=lambda: keras.optimizers.Adam(2e-4, beta_1=0.0, beta_2=0.9))
  pixels = tf.random.uniform([FLAGS.batch_size, 32, 32, 3], 0, 256, tf.int32)
  batch = {"image": tf.cast(pixels, tf.uint8),
           "label": tf.zeros([FLAGS.batch_size], tf.int32)}
  return lambda: float(runner.run(gan, batch)[0])


def take_turns() -> None:
  """Runs in a contender's process: takes turns on request."""
  turns.set_threads()
  if FLAGS.contender in ("ours", "xla"):
    step = ours()
  else:
    peer = "sngan_torch" if FLAGS.contender == "pytorch" else "sngan_keras"
    step = importlib.import_module(f"benchmarks.{peer}").make_step(
        FLAGS.batch_size, FLAGS.width_multiplier, FLAGS.precision)
  turns.take(step, FLAGS.steps)


def main(argv: list[str]) -> None:
  del argv
  if FLAGS.contender:
    take_turns()
    return
  names = (["ours", "xla"] if FLAGS.replicas > 1 else
           turns.installed({"ours": "tensorflow", "xla": "tensorflow", "keras": "tensorflow",
                            "pytorch": "torch"}))
  turns.compare("benchmarks.sngan_step", names, FLAGS.rounds, FLAGS.threads,
                amount=FLAGS.batch_size * FLAGS.steps, unit="examples",
                title=f"SN-GAN 32 px step, batch {FLAGS.batch_size}, "
                      f"width {FLAGS.width_multiplier}, {FLAGS.precision}, "
                      f"replicas: {FLAGS.replicas}, turns of {FLAGS.steps} steps")


if __name__ == "__main__":
  app.run(main)
