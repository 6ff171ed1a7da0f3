"""The SN-GAN step of `benchmarks.sngan_step` in plain Keras 3.

It uses `UpSampling2D`, `Conv2D`, `AveragePooling2D`, `BatchNormalization`, `SpectralNormalization`,
Keras Adam and one `tf.function`, and nothing of this project.
"""

from collections.abc import Callable

import keras
import tensorflow as tf
from keras import layers


def make_step(batch_size: int, width_multiplier: float, precision: str) -> Callable[[], float]:
  """A function that takes one training step and returns the discriminator's loss."""
  keras.config.set_dtype_policy(precision)
  generator = _generator(round(256 * width_multiplier))
  discriminator = _discriminator(round(128 * width_multiplier))
  g_optimizer = keras.optimizers.Adam(2e-4, beta_1=0.0, beta_2=0.9)
  d_optimizer = keras.optimizers.Adam(2e-4, beta_1=0.0, beta_2=0.9)
  g_optimizer.build(generator.trainable_variables)
  d_optimizer.build(discriminator.trainable_variables)
  images = tf.random.uniform([batch_size, 32, 32, 3], -1, 1)

  @tf.function
  def step():
    with tf.GradientTape() as tape:
      fake = tf.stop_gradient(generator(tf.random.normal([batch_size, 128]), training=True))
      scores = discriminator(tf.concat([tf.cast(images,fake.dtype), fake], axis=0), training=True)
      real_scores, fake_scores = tf.split(tf.cast(scores, tf.float32), 2)
      d_loss = (tf.reduce_mean(tf.nn.relu(1 - real_scores))
                + tf.reduce_mean(tf.nn.relu(1 + fake_scores)))
    gradients = tape.gradient(d_loss, discriminator.trainable_variables)
    d_optimizer.apply_gradients(zip(gradients, discriminator.trainable_variables, strict=True))
    with tf.GradientTape() as tape:
      fake = generator(tf.random.normal([batch_size, 128]), training=True)
      g_loss = -tf.reduce_mean(tf.cast(discriminator(fake, training=True), tf.float32))
    gradients = tape.gradient(g_loss, generator.trainable_variables)
    g_optimizer.apply_gradients(zip(gradients, generator.trainable_variables, strict=True))
    return d_loss

  return lambda: float(step())


def _generator(filters):
  z = keras.Input([128])
  x = layers.Reshape([4, 4, filters])(layers.Dense(4 * 4 * filters)(z))
  for _ in range(3):
    shortcut = layers.Conv2D(filters, 1)(layers.UpSampling2D()(x))
    x = layers.ReLU()(layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x))
    x = layers.Conv2D(filters, 3, padding="same")(layers.UpSampling2D()(x))
    x = layers.ReLU()(layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x))
    x = layers.Conv2D(filters, 3, padding="same")(x) + shortcut
  x = layers.ReLU()(layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x))
  return keras.Model(z, layers.Conv2D(3, 3, padding="same", activation="tanh")(x))


def _discriminator(filters):
  def conv(size):
    return layers.SpectralNormalization(layers.Conv2D(filters, size, padding="same"))

  images = keras.Input([32, 32, 3])
  shortcut = conv(1)(layers.AveragePooling2D(2)(images))
  x = conv(3)(layers.ReLU()(conv(3)(images)))
  x = layers.AveragePooling2D(2)(x) + shortcut
  for halve in (True, False, False):
    shortcut = layers.AveragePooling2D(2)(conv(1)(x)) if halve else x
    x = conv(3)(layers.ReLU()(conv(3)(layers.ReLU()(x))))
    x = (layers.AveragePooling2D(2)(x) if halve else x) + shortcut
  x = keras.ops.sum(layers.ReLU()(x), axis=[1, 2])
  return keras.Model(images, layers.SpectralNormalization(layers.Dense(1, use_bias=False))(x))
