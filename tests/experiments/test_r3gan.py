"""R3GAN: its update is that of the formulas, on any replicas."""

import gin
import numpy as np
import tensorflow as tf

import replicator
from experiments.r3gan import R3GAN
from replicator import random
from replicator.step import context
from tests.experiments.line import BATCH, IMAGES, Line, descend, line_gan


def r1_by_hand(discriminator: Line, images: tf.Tensor) -> tf.Tensor:
  """mean |grad D|^2 / 2 of tanh(w x + b): |w|^2 (1 - D^2)^2."""
  [w] = tf.transpose(discriminator.dense.kernel.value)
  return tf.reduce_mean((1 - discriminator(images) ** 2) ** 2) * tf.reduce_sum(w ** 2) / 2


def step_by_hand(model: R3GAN) -> list[np.ndarray]:
  """One step with gamma 2 on the whole batch: the losses, and the weights afterwards."""
  images = tf.constant(IMAGES / 127.5 - 1.0)
  with context.entered(tf.constant(0, tf.int64)):
    codes = [random.normal("z", [8, 3]) for _ in range(2)]

  def loss(sign: int, real: tf.Tensor, z: tf.Tensor, gamma: float) -> tf.Tensor:
    fake = model.generator(z)
    difference = model.discriminator(fake) - model.discriminator(real)
    penalty = sum(r1_by_hand(model.discriminator, x) for x in (real, fake))
    return tf.reduce_mean(tf.nn.softplus(sign * difference)) + gamma * penalty

  losses = [descend(model.discriminator.trainable_variables,
                    lambda: loss(1, images[0::2], codes[0], 2.0)),
            descend(model.generator.trainable_variables,
                    lambda: loss(-1, images[1::2], codes[1], 0.0))]
  return [np.array(losses), *(v.numpy() for v in model.trainable_variables)]


def test_a_step_is_that_of_the_formulas_on_two_replicas(float64):
  gin.parse_config(["r1.gamma = 2.0", "r2.gamma = 2.0"])
  expected = step_by_hand(line_gan(R3GAN))
  runner = replicator.Replicator("mirrored", logical_cpus=2)
  with runner.scope():
    model = line_gan(R3GAN)
  outputs = runner.run(model, BATCH)
  losses = [np.mean([output[name] for output in outputs])
            for name in ("discriminator", "generator")]
  for found, wanted in zip([np.array(losses), *(v.numpy() for v in model.trainable_variables)],
                           expected, strict=True):
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
