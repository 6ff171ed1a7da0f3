"""Image data sets and parts of them, and conversions between their bytes and network inputs."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Protocol

from replicator import UsageError, batches
from replicator.training.inputs.inputs import digest_of, is_batched, variant

import numpy as np
import tensorflow as tf

_BATCH = 256
_SEED = 3  # Fixed, so that a resumed run, and another run, hold out the same images.


class ImageSource(Protocol):
  """Numbered, labeled images of one size: an example source for `replicator` input pipelines."""

  size: int  # The number of distinct examples.
  image_shape: tuple[int, int, int]  # Height, width and channels, 1 or 3, of every image.
  num_classes: int  # The number of distinct labels.
  class_names: tuple[str, ...]  # One name per label, in label order.

  def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
    """The example at int64 `index`: `{"image": uint8 [h, w, c], "label": int32 []}`.

    Pure TensorFlow with static shapes, because `tf.data.Dataset.map` traces it. A source that is
    `batched` also takes indices [n].
    """
    ...


class InMemoryImages:
  """An `ImageSource` over arrays, which all pipelines share in host memory."""

  batched = True

  def __init__(self, images: np.ndarray, labels: np.ndarray, class_names: tuple[str, ...]) -> None:
    """Takes uint8 `images` [n, h, w, c] and integer `labels` [n] that index `class_names`."""
    self.size = len(images)
    self.image_shape = tuple(images.shape[1:])
    self.num_classes = len(class_names)
    self.class_names = class_names
    self._arrays = np.asarray(images, np.uint8), np.asarray(labels, np.int32)
    self._tensors: tuple[tf.Tensor, tf.Tensor] | None = None

  def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
    """The examples at int64 `index` [] or [n]: `{"image": uint8 [..., h, w, c], "label": ...}`."""
    images, labels = self._as_tensors()
    image = tf.ensure_shape(tf.gather(images, index), [*index.shape, *self.image_shape])
    return {"image": image, "label": tf.gather(labels, index)}

  def _as_tensors(self) -> tuple[tf.Tensor, tf.Tensor]:
    # Not in the constructor, because TensorFlow must not start before a strategy has set up its
    # devices. The pipeline's functions capture eager tensors by reference. So no graph contains
    # them, and they may exceed a graph's limit of 2 GB.
    if self._tensors is None:
      with tf.init_scope(), tf.device("CPU:0"):
        self._tensors = tuple(map(tf.constant, self._arrays))
    return self._tensors


class SourceOf:
  """An `ImageSource` made of another one, with its shape and its classes."""

  def __init__(self, source: ImageSource) -> None:
    self._source = source
    self.size = source.size
    self.image_shape = source.image_shape
    self.num_classes = source.num_classes
    self.class_names = source.class_names
    self.batched = is_batched(source)

  def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
    """The example at int64 `index`, as the other source loads it."""
    return self._source.load(index)

  def digest(self) -> str | None:
    """The digest of the other source, if it has one; see `replicator.training.inputs.inputs`."""
    return digest_of(self._source)

  def keep_apart(self, indices: np.ndarray) -> None:
    """Makes no other image take the place of one of these, if it cannot be read; nor vice versa."""
    _keep_apart(self._source, indices)


class Subset(SourceOf):
  """An `ImageSource` of some examples of another."""

  def __init__(self, source: ImageSource, indices: np.ndarray) -> None:
    """Takes the examples of `source` at the integers `indices` [n], in that order."""
    super().__init__(source)
    self.size = len(indices)
    self._indices = np.asarray(indices, np.int64)

  def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
    """The example at int64 `index`, as the other source loads it."""
    return super().load(tf.gather(self._indices, index))

  def augmented(self, index: tf.Tensor, seed: tf.Tensor) -> dict[str, tf.Tensor]:
    """The example as it is trained on, if the other source augments; see `Augmented`."""
    return variant(self._source, tf.gather(self._indices, index), seed)

  def digest(self) -> str | None:
    """A digest of its examples, if the other source has one; see `ExampleSource`."""
    of_all = super().digest()
    return of_all and hashed(np.array(of_all), self._indices)

  def keep_apart(self, indices: np.ndarray) -> None:
    """As in the other source; `indices` are of this one."""
    super().keep_apart(self._indices[indices])


def hold_out(source: ImageSource, share: float) -> tuple[Subset, Subset]:
  """The training part of a source, and the held-out share of it, by a fixed permutation.

  Raises:
    UsageError: a part would have no image.
  """
  count = round(share * source.size)
  if not 0 < count < source.size:
    raise UsageError(f"held_out = {share}: holds out {count} of {source.size} images, and some "
                     "must be on both sides; write a share such as 0.2")
  order = np.random.default_rng(_SEED).permutation(source.size)
  _keep_apart(source, order[:count])
  return Subset(source, order[count:]), Subset(source, order[:count])


def _keep_apart(source: ImageSource, indices: np.ndarray) -> None:
  if hasattr(source, "keep_apart"):
    source.keep_apart(indices)


def drawn_by_numpy(draw: Callable, arguments: Sequence[tf.Tensor], image_shape: tuple[int, int, int]
                   ) -> dict[str, tf.Tensor]:
  """The example that `draw(*arguments)` makes of arrays: (uint8 `image_shape`, int32 []).

  If the first argument is a vector [n], these are n examples: (uint8 [n, ...], int32 [n]).
  """
  # A function with state would be called one at a time where operations are deterministic.
  image, label = tf.numpy_function(draw, arguments, [tf.uint8, tf.int32], stateful=False)
  shape = arguments[0].shape
  return {"image": tf.ensure_shape(image, [*shape, *image_shape]),
          "label": tf.ensure_shape(label, shape)}


def hashed(*arrays: np.ndarray) -> str:
  """A `digest` of a source: that of arrays, their shapes and their types."""
  digest = hashlib.sha256()
  for array in arrays:
    digest.update(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
  return digest.hexdigest()[:32]


def read(source: ImageSource, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Images uint8 [n, h, w, c] and labels int32 [n] of the examples at `indices` [n]."""
  parts = list(batches(Subset(source, indices), _BATCH))
  return (np.concatenate([part["image"] for part in parts]),
          np.concatenate([part["label"] for part in parts]))


class _Labels(SourceOf):
  """The labels of another source alone, without its images."""

  def load(self, index: tf.Tensor) -> tf.Tensor:
    """The label at int64 `index`."""
    return super().load(index)["label"]


def labels_of(source: ImageSource) -> np.ndarray:
  """The labels of all examples, int32 [n]."""
  return np.concatenate(list(batches(_Labels(source), _BATCH)))


def to_unit_range(images: tf.Tensor, dtype: tf.DType | str = tf.float32) -> tf.Tensor:
  """Scales uint8 in [0, 255] to [-1, 1], the range of a `tanh` generator; any shape.

  The result has the given dtype. Half-precision results are computed in float32 and rounded once.
  """
  dtype = tf.as_dtype(dtype)
  exact = dtype if dtype == tf.float64 else tf.float32
  return tf.cast(tf.cast(images, exact) / 127.5 - 1.0, dtype)


def to_uint8(images: tf.Tensor) -> tf.Tensor:
  """Scales floats in [-1, 1] to the nearest uint8 in [0, 255]; any shape.

  The inverse of `to_unit_range`, exact for float32 and float64. Values outside [-1, 1] are clipped,
  and NaN becomes 0.
  """
  images = tf.convert_to_tensor(images)
  exact = images if images.dtype == tf.float64 else tf.cast(images, tf.float32)
  levels = tf.clip_by_value(tf.round((exact + 1.0) * 127.5), 0.0, 255.0)
  return tf.cast(tf.where(tf.math.is_nan(levels), tf.zeros_like(levels), levels), tf.uint8)
