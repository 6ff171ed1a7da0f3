"""The cost of exact gradient penalties: a discriminator step of R3GAN with R1 + R2 and without.

  python -m benchmarks.penalty_step [--resolution=32 --widths=96,96,96,96 --batch_size=16]

One step draws images from the generator, and updates the discriminator with the relativistic loss
(float32, Adam, two threads). The contenders:

  penalized        with R1 + R2, by `models.gan.penalties`: one pass forwards and one backwards are
                   shared by the loss and both penalties
  plain            without them
  torch_penalized  `benchmarks.penalty_torch`, the same step in eager PyTorch, with the same sharing
  torch_plain      without R1 and R2

PyTorch takes part where it is installed: `pip install torch --index-url
https://download.pytorch.org/whl/cpu` installs the one for CPUs. Contenders take turns as in
`benchmarks.sngan_step`.
"""

from collections.abc import Callable

from benchmarks import turns

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("resolution", 8, "Pixels of the images.", lower_bound=8)
flags.DEFINE_integer("channels", 3, "Channels of the images.", lower_bound=1)
flags.DEFINE_list("widths", ["64", "64"], "Channels of each stage, from 4x4 up.")
flags.DEFINE_integer("batch_size", 64, "Real images of a step.", lower_bound=1)
flags.DEFINE_integer("rounds", 15, "Turns of every contender.", lower_bound=1)
flags.DEFINE_integer("steps", 3, "Steps of one turn.", lower_bound=1)
turns.define_flags(["penalized", "plain", "torch_penalized", "torch_plain"])

_GAMMA = 1.0


def ours(penalized: bool) -> Callable[[], float]:
  """Makes this project's step."""
  import replicator
  from models.gan.networks.r3gan import R3GANDiscriminator, R3GANGenerator
  from models.gan.penalties.gradients import r1, r2
  from models.gan.penalties.scores import Scores

  import keras
  import tensorflow as tf

  shape = FLAGS.resolution, FLAGS.channels
  widths = tuple(map(int, FLAGS.widths))

  class DiscriminatorStep(tf.Module):
    """Updates the discriminator with the relativistic loss, and R1 and R2 if `penalized`."""

    def __init__(self):
      super().__init__()
      self.generator = R3GANGenerator(*shape, widths=widths)
      self.discriminator = R3GANDiscriminator(*shape, widths=widths)
      self.optimizer = replicator.wrap_optimizer(
          keras.optimizers.Adam(2e-4, beta_1=0.0, beta_2=0.9),
          self.discriminator.trainable_variables)
      self.penalties = [r1(_GAMMA), r2(_GAMMA)] if penalized else []

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
      fakes = self.generator(replicator.random.normal("z", [images.shape[0], 64]), training=True)
      loss, gradients = self.optimizer.loss_and_gradients(self._loss, images, fakes)
      self.optimizer.apply(gradients, self.discriminator.trainable_variables)
      return loss

    def _loss(self, images: tf.Tensor, fakes: tf.Tensor) -> tf.Tensor:
      scores = Scores(self.discriminator, images, fakes)
      relativistic = tf.reduce_mean(tf.nn.softplus(scores.fake - scores.real))
      return tf.add_n([relativistic, *(penalty(scores) for penalty in self.penalties)])

  runner = replicator.Replicator()
  with runner.scope():
    step = DiscriminatorStep()
  images = tf.random.uniform([FLAGS.batch_size, shape[0], *shape], -1, 1)
  return lambda: float(runner.run(step, images)[0])


def take_turns() -> None:
  """Runs in a contender's process: takes turns on request."""
  penalized = FLAGS.contender.endswith("penalized")
  turns.set_threads()
  if FLAGS.contender.startswith("torch"):
    from benchmarks import penalty_torch
    step = penalty_torch.make_step(FLAGS.resolution, FLAGS.channels, tuple(map(int, FLAGS.widths)),
                                   FLAGS.batch_size, _GAMMA if penalized else 0.0)
  else:
    step = ours(penalized)
  turns.take(step, FLAGS.steps)


def main(argv: list[str]) -> None:
  del argv
  if FLAGS.contender:
    take_turns()
    return
  names = turns.installed({"penalized": "tensorflow", "plain": "tensorflow",
                           "torch_penalized": "torch", "torch_plain": "torch"})
  medians = turns.compare(
      "benchmarks.penalty_step", names, FLAGS.rounds, FLAGS.threads,
      amount=FLAGS.batch_size * FLAGS.steps, unit="examples",
      title=f"R3GAN discriminator step, {FLAGS.resolution} px, widths {','.join(FLAGS.widths)}, "
            f"batch {FLAGS.batch_size}, float32, turns of {FLAGS.steps} steps")
  for prefix in ("", "torch_"):
    if f"{prefix}plain" in medians:
      ratio = medians[f"{prefix}penalized"] / medians[f"{prefix}plain"]
      print(f"{'PyTorch' if prefix else 'ours':8} with R1 + R2: {ratio:.2f} times the step without")


if __name__ == "__main__":
  app.run(main)
