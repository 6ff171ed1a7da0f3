"""Images, features of them, and a GAN, all of which take no time."""

import pathlib

from models.gan.latents.distributions import uniform_latents
from models.metrics.extractors.extractor import Extracted

import numpy as np
import tensorflow as tf
from PIL import Image

COUNT = 24


class Colors:
  """An extractor of the means and deviations of the channels, NaN for black images."""

  name = "colors"
  num_features = 6
  resizing = "none"
  is_inception = False

  def __init__(self):
    self.calls = 0

  def __call__(self, images: np.ndarray) -> Extracted:
    self.calls += 1
    values = np.concatenate([images.mean((1, 2)), images.std((1, 2))], 1)
    values[~images.any((1, 2, 3))] = np.nan
    return Extracted(values.astype(np.float32), None)


class Gan:
  """A GAN of noise: its images are what its latents are."""

  latent_dim = 8 * 8 * 3
  num_classes = 0

  latents = staticmethod(uniform_latents)

  def generate(self, z, labels):
    return tf.reshape(z, [-1, 8, 8, 3])


def noise(seed: int, count: int = COUNT, size: int = 8) -> np.ndarray:
  return np.random.default_rng(seed).integers(0, 256, [count, size, size, 3], np.uint8)


def save(folder: pathlib.Path, images: np.ndarray, kind: str = "png") -> pathlib.Path:
  folder.mkdir()
  for number, image in enumerate(images):
    Image.fromarray(image).save(folder / f"{number:03}.{kind}")
  return folder
