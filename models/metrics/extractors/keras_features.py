"""Extractors from existing networks: the small classifier, and any Keras model."""

import hashlib
import os
from collections.abc import Callable

from models.metrics.extractors.extractor import IMAGES, Extracted, bicubic, check, in_batches
from models.vision.classification.small_classifier import NUM_FEATURES, load, load_or_train
from models.vision.images.image_source import ImageSource, to_unit_range
from replicator import UsageError

import gin
import keras
import numpy as np
import tensorflow as tf


@gin.configurable
class SmallClassifier:
  """The `Extractor` of a small classifier trained on the real images themselves.

  Use its metrics to compare runs on one source with each other; see
  `models.vision.classification.small_classifier`. Images must have the resolution of its source,
  and for a gray source three equal channels.
  """

  num_features = NUM_FEATURES
  resizing = "none"
  is_inception = False

  def __init__(self, source: ImageSource | None, folder: str | os.PathLike) -> None:
    """Loads the classifier of `source` from `folder`, or trains it and saves it there.

    Without a source, it loads the classifier in the folder.

    Raises:
      UsageError: there is no classifier, or the source has only one class.
    """
    self._classifier = load_or_train(source, folder) if source else load(folder)
    self._shape = self._classifier.model.input_shape[1:]
    weights = b"".join(weight.tobytes() for weight in self._classifier.model.get_weights())
    of_source = f"of {type(source).__name__} " if source else ""
    self.name = f"classifier {of_source}with weights {hashlib.sha256(weights).hexdigest()[:8]}"

  def __call__(self, images: np.ndarray) -> Extracted:
    check(images)
    if images.shape[1:3] != self._shape[:2]:
      raise UsageError(f"features of images {list(images.shape)}: the {self.name} takes "
                       f"{self._shape[0]}x{self._shape[1]} pixels only")
    if self._shape[2] == 1:
      if (images != images[..., :1]).any():
        raise UsageError(f"features of color images: the {self.name} takes gray ones, with three "
                         "equal channels")
      images = images[..., :1]
    return Extracted(*self._classifier(images))


@gin.configurable
class KerasFeatures:
  """The `Extractor` of any Keras model; feature maps are averaged over positions.

  Images are resized to the model's input size by a bicubic filter, unless it takes any size.
  """

  is_inception = False

  def __init__(self, model: keras.Model | str, name: str, layer: str | None = None,
               preprocess: Callable[[tf.Tensor], tf.Tensor] = to_unit_range) -> None:
    """Makes an extractor from a model.

    Args:
      model: a functional or sequential model of RGB images, or the path of a `.keras` file.
      name: its name in reports. Different models, or states of a model, need different names.
      layer: the layer whose outputs are the features; the model's outputs are then the logits. By
        default the model's outputs are the features, and there are no logits.
      preprocess: makes the model's inputs from images with values from 0 to 255. By default they
        are scaled to [-1, 1].

    Raises:
      UsageError: the file cannot be read, or inputs or outputs have the wrong shapes.
      ValueError: there is no such layer.
    """
    model = _loaded(model) if isinstance(model, str) else model
    outputs = (model.outputs if layer is None
               else [model.get_layer(layer).output, *model.outputs])
    self._model = keras.Model(model.inputs, outputs)
    self._preprocess = preprocess
    self._resolution = _resolution(model)
    rank = len(outputs[0].shape)
    if rank not in (2, 4) or len(outputs) != (1 if layer is None else 2):
      raise UsageError(f"KerasFeatures.name = {name!r}: the model has outputs of the shapes "
                       f"{[tuple(output.shape) for output in outputs]}, but features must be one "
                       "[n, d] or [n, h, w, d]; KerasFeatures.layer uses those of a layer")
    self._average = rank == 4
    self.name = name
    self.num_features = outputs[0].shape[-1]
    self.resizing = ("none" if self._resolution is None else
                     f"bicubic with antialiasing, to {self._resolution}x{self._resolution}")

  def __call__(self, images: np.ndarray) -> Extracted:
    return in_batches(self._forward, images)

  @tf.function(autograph=False, input_signature=[IMAGES])
  def _forward(self, images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
    resized = (tf.cast(images, tf.float32) if self._resolution is None
               else bicubic(images, self._resolution))
    features, *logits = tf.nest.flatten(self._model(self._preprocess(resized), training=False))
    if self._average:
      features = tf.reduce_mean(features, [1, 2])
    return features, logits[0] if logits else None


def _loaded(path: str) -> keras.Model:
  try:
    if not path.endswith(".keras"):  # Keras runs no code from these; from older formats, it may.
      raise ValueError("not a `.keras` file")
    return keras.saving.load_model(os.path.expanduser(path), compile=False)
  except (OSError, ValueError, TypeError) as error:
    reason = str(error).strip().partition("\n")[0]
    raise UsageError(f"KerasFeatures.model = {path!r} cannot be loaded ({reason}): set the path "
                     "of a file saved by `model.save('NAME.keras')`") from error


def _resolution(model: keras.Model) -> int | None:
  """Returns the height and width of the inputs, or None if any size works."""
  shapes = [tuple(tensor.shape) for tensor in model.inputs]
  if len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][3] != 3 or shapes[0][1] != shapes[0][2]:
    raise UsageError(f"KerasFeatures.model has inputs of the shapes {shapes}: it must take square "
                     "RGB images (None, r, r, 3)")
  return shapes[0][1]
