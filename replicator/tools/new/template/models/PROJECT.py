"""The networks of an adversarial autoencoder."""

import keras

import replicator


def encoder(image_shape: tuple[int, int, int], latent_dim: int) -> keras.Sequential:
  """Codes of images: `[n, *image_shape] -> [n, latent_dim]`."""
  return keras.Sequential([
      keras.Input(image_shape), keras.layers.Flatten(), keras.layers.Dense(256),
      replicator.GlobalBatchNorm(), keras.layers.ReLU(), keras.layers.Dense(latent_dim)])


def decoder(image_shape: tuple[int, int, int], latent_dim: int) -> keras.Sequential:
  """Images of codes: `[n, latent_dim] -> [n, *image_shape]`, -1 to 1."""
  height, width, channels = image_shape
  return keras.Sequential([
      keras.Input([latent_dim]), keras.layers.Dense(256), replicator.GlobalBatchNorm(),
      keras.layers.ReLU(), keras.layers.Dense(height * width * channels, activation="tanh"),
      keras.layers.Reshape(image_shape)])


def discriminator(latent_dim: int) -> keras.Sequential:
  """Scores of codes, high for those that are drawn: `[n, latent_dim] -> [n, 1]`."""
  return keras.Sequential([
      keras.Input([latent_dim]), keras.layers.Dense(128, activation="leaky_relu"),
      keras.layers.Dense(128, activation="leaky_relu"), keras.layers.Dense(1)])
