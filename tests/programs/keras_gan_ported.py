"""A GAN of Keras, with a `train_step` of its own, as one trains it with `compile` and `fit`."""

import replicator
from replicator import app, random

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

LATENTS = 32


def generator() -> keras.Model:
  return keras.Sequential([
      keras.Input([LATENTS]),
      layers.Dense(4 * 32, use_bias=False), replicator.GlobalBatchNorm(), layers.ReLU(),
      layers.Reshape([2, 2, 32]),
      layers.Conv2DTranspose(16, 4, 2, "same", use_bias=False), replicator.GlobalBatchNorm(),
      layers.ReLU(), layers.Conv2DTranspose(1, 4, 2, "same", activation="tanh")])


def discriminator() -> keras.Model:
  return keras.Sequential([
      keras.Input([8, 8, 1]), layers.Conv2D(16, 4, 2, "same"), layers.LeakyReLU(0.2),
      layers.Conv2D(32, 4, 2, "same"), replicator.GlobalBatchNorm(), layers.LeakyReLU(0.2),
      layers.Flatten(), replicator.Dropout(0.3), layers.Dense(1)])


class GAN(keras.Model):
  """Two networks, two optimizers, and metrics."""

  def __init__(self):
    super().__init__()
    self.generator, self.discriminator = generator(), discriminator()

  def compile(self, g_optimizer, d_optimizer, loss):
    super().compile()
    self.g_optimizer = replicator.wrap_optimizer(g_optimizer, self.generator.trainable_variables)
    self.d_optimizer = replicator.wrap_optimizer(
        d_optimizer, self.discriminator.trainable_variables)
    self.loss_of = loss

  def train_step(self, images):
    n = images.shape[0]
    z = random.normal("z", [n, LATENTS])
    with tf.GradientTape() as tape:
      fakes = self.discriminator(self.generator(z, training=True), training=True)
      reals = self.discriminator(images, training=True)
      d_loss = self.loss_of(tf.ones_like(reals), reals) + self.loss_of(tf.zeros_like(fakes), fakes)
    weights = self.discriminator.trainable_variables
    gradients = tape.gradient(d_loss, weights)
    self.d_optimizer.apply(gradients, weights)
    z = random.normal("z", [n, LATENTS])
    with tf.GradientTape() as tape:
      fakes = self.discriminator(self.generator(z, training=True), training=True)
      g_loss = self.loss_of(tf.ones_like(fakes), fakes)
    weights = self.generator.trainable_variables
    gradients = tape.gradient(g_loss, weights)
    self.g_optimizer.apply(gradients, weights)
    return {"g_loss": g_loss, "d_loss": d_loss}


class Samples(replicator.Callback):
  """Saves samples at each log point."""

  def after_steps(self, run):
    z = np.random.RandomState(0).normal(size=[16, LATENTS])
    np.save(run.workdir / f"samples-{run.step}.npy", run.module.generator(z, training=False))


def compiled_gan() -> GAN:
  gan = GAN()
  gan.compile(keras.optimizers.Adam(2e-4, 0.5), keras.optimizers.Adam(2e-4, 0.5),
              keras.losses.BinaryCrossentropy(from_logits=True))
  return gan


def digits() -> tf.data.Dataset:
  images = load_digits().images[..., None].astype("float32") / 8 - 1
  return tf.data.Dataset.from_tensor_slices(images).shuffle(2000, seed=0).repeat().batch(64)


if __name__ == "__main__":
  app.run(lambda workdir: replicator.train(
      compiled_gan, digits, workdir=workdir, steps=1120, callbacks=[Samples()]))
