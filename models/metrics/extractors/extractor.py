"""Extractors: networks that turn images into the features that metrics compare."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from replicator import UsageError

import numpy as np
import tensorflow as tf

_BATCH_SIZE = 64

IMAGES = tf.TensorSpec([None, None, None, 3], tf.uint8)


class Extracted(NamedTuple):
  """Outputs for n images: float32 `features` [n, d], and `logits` [n, k] or None."""

  features: np.ndarray
  logits: np.ndarray | None


class Extractor(Protocol):
  """A network from images to features, and to logits if it classifies."""

  name: str  # In reports, such as `Inception 2015`. Equal names mean equal features.
  num_features: int  # d, the number of features of an image.
  resizing: str  # How images are resized for its network, in a few words.
  # Whether this is the network of published results. Only then are metrics called FID, KID and
  # Inception score.
  is_inception: bool

  def __call__(self, images: np.ndarray) -> Extracted:
    """Returns the features of RGB images, uint8 [n, h, w, 3].

    Raises:
      UsageError: the images have the wrong dtype or shape.
    """
    ...


def in_batches(forward: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor | None]],
               images: np.ndarray) -> Extracted:
  """Applies `forward: uint8 [m, h, w, 3] -> [m, d], [m, k] or None` to 64 images at a time.

  Raises:
    UsageError: the images have the wrong dtype or shape, or there are none.
  """
  check(images)
  outputs = [forward(tf.constant(images[i:i + _BATCH_SIZE]))
             for i in range(0, len(images), _BATCH_SIZE)]
  features, logits = zip(*outputs, strict=True)
  joined = None if logits[0] is None else tf.concat(logits, 0).numpy().astype(np.float32)
  return Extracted(tf.concat(features, 0).numpy().astype(np.float32), joined)


def check(images: np.ndarray) -> None:
  """Checks that images are RGB, uint8 [n, h, w, 3] with n > 0.

  Raises:
    UsageError: the images have the wrong dtype or shape, or there are none.
  """
  if images.ndim != 4 or images.shape[-1] != 3 or not images.size:
    raise UsageError(f"features of images {list(images.shape)}: pass an array [n, h, w, 3] of at "
                     "least one RGB image; for gray ones, np.repeat(images, 3, axis=-1)")
  if images.dtype != np.uint8:
    raise UsageError(f"features of images of type {images.dtype}: pass uint8 from 0 to 255; "
                     "`models.vision.images.image_source.to_uint8` converts floats from -1 to 1")


def bicubic(images: tf.Tensor, resolution: int) -> tf.Tensor:
  """Resizes whole images to a square, bicubic with antialiasing: [n, h, w, 3] -> [n, r, r, 3].

  The result is float32 from about 0 to 255, neither rounded nor clipped. It equals Pillow's bicubic
  filter on float channels.
  """
  return tf.image.resize(images, [resolution, resolution], "bicubic", antialias=True)
