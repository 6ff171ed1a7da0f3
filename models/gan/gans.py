"""Parts shared by all GANs: training, and generation with averaged weights."""

import os
from collections.abc import Callable
from typing import Any

import replicator
from models.gan.evaluation import sampling
from models.gan.evaluation.sample_evaluator import SampleEvaluator
from models.vision import sources  # noqa: F401  (for gin)
from models.vision.images.classes import Classes
from models.vision.images.image_source import ImageSource, classes_of, to_unit_range

import keras
import tensorflow as tf


def train(make_gan: Callable[[tuple[int, int, int], Classes], Any],
          data: Callable[[], ImageSource], workdir: str) -> None:
  """Trains a GAN on all images of a source, or resumes the run in `workdir`.

  `make_gan` makes the step from the shape of an image and the classes.
  """
  source = data()
  check_square(source)
  replicator.train(lambda: make_gan(source.image_shape, classes_of(source)), source,
                   SampleEvaluator(source, os.path.join(workdir, "classifier")), workdir=workdir)


def check_square(source: ImageSource) -> None:
  """Raises a UsageError if a source's images are not square, as all networks require."""
  height, width, _ = source.image_shape
  if height != width:
    raise replicator.UsageError(
        f"{type(source).__name__}: has images of {height} x {width} pixels, but a GAN needs "
        f"square ones; crop them: replicator convert DATA OUT --shards=1 "
        f"--resolution={min(height, width)}, and set TFRecords.path = 'OUT'")


@replicator.any_batch_size
def generate(gan: Any, z: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
  """Samples the averaged generator: `[n, latent_dim], int32 [n] -> [n, h, w, c]`.

  A step with `generator` and `optimizers` can use it as a method: `generate = gans.generate`.
  """
  with gan.optimizers["generator"].averaged_weights():
    return gan.generator(z, labels, training=False)


@tf.function(autograph=False)
def reconstruct(gan: Any, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
  """Encodes and decodes images, as a method: uint8 `[n, h, w, c]`, int32 `[n]` -> floating.

  Raises:
    UsageError: the step has no encoder.
  """
  if not gan.encoder:
    raise replicator.UsageError(f"{type(gan).__name__}.encoder = None: reconstruction needs an "
                                "encoder")
  images = to_unit_range(images, keras.config.floatx())
  return gan.generate(sampling.encode(gan, images), labels)
