"""The networks of an adversarial autoencoder. Their last layers do not use half precision."""

import keras

import replicator


def encoder(image_shape: tuple[int, int, int], latent_dim: int) -> keras.Sequential:
  """Makes the encoder of images to latents: `[n, *image_shape] -> [n, latent_dim]`."""
  return keras.Sequential([
      keras.Input(image_shape), keras.layers.Flatten(), keras.layers.Dense(256),
      replicator.GlobalBatchNorm(), keras.layers.ReLU(),
      keras.layers.Dense(latent_dim, dtype=keras.config.floatx())])


def decoder(image_shape: tuple[int, int, int], latent_dim: int) -> keras.Sequential:
  """Makes the decoder of latents to images: `[n, latent_dim] -> [n, *image_shape]`, -1 to 1."""
  height, width, channels = image_shape
  return keras.Sequential([
      keras.Input([latent_dim]), keras.layers.Dense(256), replicator.GlobalBatchNorm(),
      keras.layers.ReLU(), keras.layers.Dense(height * width * channels, activation="tanh"),
      keras.layers.Reshape(image_shape, dtype=keras.config.floatx())])


def discriminator(latent_dim: int) -> keras.Sequential:
  """Makes a scorer of latents, high for draws from N(0, 1): `[n, latent_dim] -> [n, 1]`."""
  return keras.Sequential([
      keras.Input([latent_dim]), keras.layers.Dense(128, activation="leaky_relu"),
      keras.layers.Dense(128, activation="leaky_relu"),
      keras.layers.Dense(1, dtype=keras.config.floatx())])
