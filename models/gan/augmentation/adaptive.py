"""The probability of an augmentation, adapted to how far the discriminator overfits."""

import gin
import keras
import tensorflow as tf

import replicator
from models.gan.checks import at_least_one
from replicator import replicated


@gin.configurable
class AdaptiveProbability(tf.Module):
  """A probability p that rises while the discriminator is too sure of real images.

  The sign is r = mean sign D(x) of real images. After every 4 batches p rises by their number of
  images / `images` if r is above `target`, and else falls by that. It starts at 0 and stays in
  [0, 1]. All replicas hold the same p, and a checkpoint saves it.

  Args:
    target: the r to stay near.
    images: the number of images in which p goes from 0 to 1.
    every: batches from one change to the next.

  Raises:
    UsageError: `images` or `every` is below 1.

  Reference: Karras et al. 2020 (arXiv:2006.06676), section 3.1 and equation 1.
  """

  def __init__(self, target: float = 0.6, images: int = 500_000, every: int = 4):
    super().__init__()
    at_least_one("AdaptiveProbability", images=images, every=every)
    self.target = target
    self.images = images
    self.every = every
    # p; the sum of the signs since its last change, and their number.
    self.state = replicated.variable([0.0, 0.0, 0.0], keras.config.floatx(), "adaptive_probability")

  def __call__(self) -> tf.Tensor:
    """p [], the same in all micro-batches of a batch."""
    return replicated.before(self.state)[0]

  def observe(self, real_scores: tf.Tensor) -> None:
    """Counts the signs of the scores [n] of a batch, or of a micro-batch, of real images."""
    p, signs, count = tf.unstack(tf.convert_to_tensor(self.state))
    size = real_scores.shape[0] * replicator.num_replicas()
    sign = tf.reduce_mean(tf.sign(tf.stop_gradient(real_scores)))
    sign = tf.where(tf.math.is_nan(sign), tf.zeros_like(sign), sign)
    sign = tf.cast(replicator.all_mean(sign), p.dtype)
    signs, count = signs + sign * size, count + size
    is_due = count >= self.every * size * replicated.num_microbatches()
    step = tf.sign(signs / count - self.target) * count / self.images
    changed = tf.stack([tf.clip_by_value(p + step, 0.0, 1.0), 0.0, 0.0])
    replicated.update([self.state], lambda copies, x: copies[0].assign(x),
                      tf.where(is_due, changed, tf.stack([p, signs, count])))
