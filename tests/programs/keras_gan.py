"""A GAN of Keras, with a `train_step` of its own, as one trains it with `compile` and `fit`."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

LATENTS = 32


def generator() -> keras.Model:
  return keras.Sequential([
      keras.Input([LATENTS]),
      layers.Dense(4 * 32, use_bias=False), layers.BatchNormalization(), layers.ReLU(),
      layers.Reshape([2, 2, 32]),
      layers.Conv2DTranspose(16, 4, 2, "same", use_bias=False), layers.BatchNormalization(),
      layers.ReLU(), layers.Conv2DTranspose(1, 4, 2, "same", activation="tanh")])


def discriminator() -> keras.Model:
  return keras.Sequential([
      keras.Input([8, 8, 1]), layers.Conv2D(16, 4, 2, "same"), layers.LeakyReLU(0.2),
      layers.Conv2D(32, 4, 2, "same"), layers.BatchNormalization(), layers.LeakyReLU(0.2),
      layers.Flatten(), layers.Dropout(0.3), layers.Dense(1)])


class GAN(keras.Model):
  """Two networks, two optimizers, and metrics."""

  def __init__(self):
    super().__init__()
    self.generator, self.discriminator = generator(), discriminator()
    self.g_loss, self.d_loss = keras.metrics.Mean("g_loss"), keras.metrics.Mean("d_loss")

  def compile(self, g_optimizer, d_optimizer, loss):
    super().compile()
    self.g_optimizer, self.d_optimizer = g_optimizer, d_optimizer
    self.loss_of = loss

  def train_step(self, images):
    n = tf.shape(images)[0]
    z = tf.random.normal([n, LATENTS])
    with tf.GradientTape() as tape:
      fakes = self.discriminator(self.generator(z, training=True), training=True)
      reals = self.discriminator(images, training=True)
      d_loss = self.loss_of(tf.ones_like(reals), reals) + self.loss_of(tf.zeros_like(fakes), fakes)
    weights = self.discriminator.trainable_variables
    gradients = tape.gradient(d_loss, weights)
    self.d_optimizer.apply_gradients(zip(gradients, weights, strict=True))
    z = tf.random.normal([n, LATENTS])
    with tf.GradientTape() as tape:
      fakes = self.discriminator(self.generator(z, training=True), training=True)
      g_loss = self.loss_of(tf.ones_like(fakes), fakes)
    weights = self.generator.trainable_variables
    gradients = tape.gradient(g_loss, weights)
    self.g_optimizer.apply_gradients(zip(gradients, weights, strict=True))
    self.g_loss.update_state(g_loss)
    self.d_loss.update_state(d_loss)
    return {"g_loss": self.g_loss.result(), "d_loss": self.d_loss.result()}


class Samples(keras.callbacks.Callback):
  """Saves samples after each epoch."""

  def on_epoch_end(self, epoch, logs=None):
    z = np.random.RandomState(0).normal(size=[16, LATENTS])
    np.save(f"samples-{epoch}.npy", self.model.generator(z, training=False))


def compiled_gan() -> GAN:
  gan = GAN()
  gan.compile(keras.optimizers.Adam(2e-4, 0.5), keras.optimizers.Adam(2e-4, 0.5),
              keras.losses.BinaryCrossentropy(from_logits=True))
  return gan


def digits() -> tf.data.Dataset:
  images = load_digits().images[..., None].astype("float32") / 8 - 1
  return tf.data.Dataset.from_tensor_slices(images).shuffle(2000).batch(64, drop_remainder=True)


if __name__ == "__main__":
  compiled_gan().fit(digits(), epochs=40, callbacks=[Samples()])
