"""A tiny CycleGAN (Zhu et al. 2017): two generators, two discriminators, and two pools of images.

    python -m tests.programs.cycle_gan --gin_param="train.steps = 10" --workdir=DIR
"""

import keras
import tensorflow as tf

import replicator
from replicator import app
from tests.programs.two_networks import WIDTH, network

POOL = 20


class TwoDomains:
  """50 unpaired examples `{"a": [WIDTH], "b": [WIDTH]}`."""

  size = 50

  def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
    phase = tf.cast(index, keras.config.floatx())
    phase *= tf.range(1, WIDTH + 1, dtype=phase.dtype)
    return {"a": tf.sin(phase), "b": 2.0 + tf.cos(phase / 3)}


class CycleGAN(tf.Module):
  """Translates between two domains; the discriminators see past images among the new ones."""

  def __init__(self):
    super().__init__()
    self.to = {"b": network(WIDTH), "a": network(WIDTH)}
    self.judges = {domain: network(1) for domain in self.to}
    self.pools = {domain: replicator.ExamplePool(POOL, [WIDTH]) for domain in self.to}
    self.optimizers = replicator.wrap_optimizers(
        lambda: keras.optimizers.Adam(2e-3, beta_1=0.5),
        g=[*self.to.values()], d=[*self.judges.values()])

  def __call__(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    losses, gradients = replicator.microbatch(self.losses_and_gradients, batch)
    for name, optimizer in self.optimizers.items():
      optimizer.apply(gradients[name])
    return losses

  def losses_and_gradients(self, batch: dict[str, tf.Tensor]) -> tuple[dict, dict]:
    """Both losses `[]`, and their gradients by every variable."""
    with tf.GradientTape(persistent=True) as tape:
      losses = {"g": 0.0, "d": 0.0}
      for source, target in (("a", "b"), ("b", "a")):
        real, other = batch[target], batch[source]
        fake = self.to[target](other, training=True)
        judge = lambda x, target=target: self.judges[target](x, training=True)
        cycle = tf.reduce_mean(tf.abs(self.to[source](fake, training=True) - other))
        losses["g"] += tf.reduce_mean(tf.square(judge(fake) - 1)) + 10 * cycle
        shown = self.pools[target].exchange(fake)
        losses["d"] += (tf.reduce_mean(tf.square(judge(real) - 1))
                        + tf.reduce_mean(tf.square(judge(shown)))) / 2
    return losses, {name: tape.gradient(losses[name], [v.value for v in each.variables_updated])
                    for name, each in self.optimizers.items()}


def main(workdir: str) -> CycleGAN:
  """Trains."""
  return replicator.train(CycleGAN, TwoDomains(), workdir=workdir)


if __name__ == "__main__":
  app.run(main)
