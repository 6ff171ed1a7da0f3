"""Image data sets and subsets, and conversions between uint8 images and network inputs."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from models.vision.images.classes import Classes, unique
from replicator import UsageError, batches
from replicator.console.formatting import listed
from replicator.training.inputs.inputs import digest_of, is_batched, variant

import numpy as np
import tensorflow as tf
from absl import logging

_BATCH = 256
_SEED = 3  # Fixed, so that all runs hold out the same images.


class ImageSource(Protocol):
  """Numbered, labeled images of one size: an example source for `replicator` input pipelines.

  A source that has its `labels`, int32 `[size]`, without loading images is `Labeled`. Labels of
  other sources are loaded with the images when needed.
  """

  size: int  # The number of distinct examples.
  image_shape: tuple[int, int, int]  # Height, width and channels, 1 or 3, of every image.
  class_names: tuple[str, ...]  # One name per label, in label order.

  @property
  def num_classes(self) -> int:
    """The number of distinct labels."""
    ...

  def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the example at int64 `index`: `{"image": uint8 [h, w, c], "label": int32 []}`.

    Pure TensorFlow with static shapes, because `tf.data.Dataset.map` traces it. A source that is
    `batched` also takes indices [n].
    """
    ...


def in_words(labels: np.ndarray | None, class_names: Sequence[str]) -> str:
  """Describes the classes of labels int [n], and the smallest, for the first lines of a run."""
  count = len(class_names)
  text = f"{count:,} class{'es' * (count > 1)}: {listed(class_names)}"
  if labels is None or count == 1:
    return text
  sizes = np.bincount(labels, minlength=count)
  return f"{text}, the smallest {class_names[int(sizes.argmin())]} with {sizes.min():,}"


class Labeled:
  """Base class of an `ImageSource` that has its labels without loading images."""

  labels: np.ndarray | None  # int32 [size], which index `class_names`; None if unknown.
  class_names: tuple[str, ...]

  @property
  def num_classes(self) -> int:
    """The number of distinct labels."""
    return len(self.class_names)

  def summary(self) -> dict[str, Any]:
    """Returns class names and their numbers of examples, or None, for `run.json`."""
    if self.labels is None:
      return {"classes": dict.fromkeys(unique(self.class_names))}
    found = Classes.of(self.labels, self.class_names)
    return {"classes": dict(zip(found.names, found.counts, strict=True))}

  def describe(self) -> str:
    """Describes the classes and the smallest one, for the first lines of a run."""
    return in_words(self.labels, self.class_names)


class InMemoryImages(Labeled):
  """An `ImageSource` over arrays, which all pipelines share in host memory."""

  batched = True

  def __init__(self, images: np.ndarray, labels: np.ndarray, class_names: tuple[str, ...]) -> None:
    """Takes uint8 `images` [n, h, w, c] and integer `labels` [n] that index `class_names`."""
    self.size = len(images)
    self.image_shape = tuple(images.shape[1:])
    self.class_names = class_names
    self.labels = np.asarray(labels, np.int32)
    self._arrays = np.asarray(images, np.uint8), self.labels
    self._tensors: tuple[tf.Tensor, tf.Tensor] | None = None

  def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
    """Loads examples at int64 `index` [] or [n]: `{"image": uint8 [..., h, w, c], "label"}`."""
    images, labels = self._as_tensors()
    image = tf.ensure_shape(tf.gather(images, index), [*index.shape, *self.image_shape])
    return {"image": image, "label": tf.gather(labels, index)}

  def _as_tensors(self) -> tuple[tf.Tensor, tf.Tensor]:
    # Not in the constructor, because TensorFlow must not start before a strategy has set up its
    # devices. The pipeline's functions capture eager tensors by reference, so no graph contains
    # them, and they may exceed a graph's limit of 2 GB.
    if self._tensors is None:
      with tf.init_scope(), tf.device("CPU:0"):
        self._tensors = tuple(map(tf.constant, self._arrays))
    return self._tensors


class SourceOf(Labeled):
  """An `ImageSource` that wraps another, with its shape and classes."""

  def __init__(self, source: ImageSource) -> None:
    self._source = source
    self.size = source.size
    self.image_shape = source.image_shape
    self.class_names = source.class_names
    self.batched = is_batched(source)

  @property
  def labels(self) -> np.ndarray | None:  # type: ignore[override]
    """The labels of all examples, int32 [size], if the wrapped source has them."""
    return getattr(self._source, "labels", None)

  def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
    """Loads the example at int64 `index` from the wrapped source."""
    return self._source.load(index)

  def digest(self) -> str | None:
    """Returns the wrapped source's digest, if any; see `replicator.training.inputs.inputs`."""
    return digest_of(self._source)

  def keep_apart(self, indices: np.ndarray) -> None:
    """Never replaces unreadable images at these indices with images elsewhere, or vice versa."""
    _keep_apart(self._source, indices)


class Subset(SourceOf):
  """An `ImageSource` of some examples of another source."""

  def __init__(self, source: ImageSource, indices: np.ndarray) -> None:
    """Takes the examples of `source` at the integers `indices` [n], in that order."""
    super().__init__(source)
    self.size = len(indices)
    self._indices = np.asarray(indices, np.int64)

  @property
  def labels(self) -> np.ndarray | None:  # type: ignore[override]
    """The labels of these examples, int32 [size], if the wrapped source has them."""
    of_all = super().labels
    return None if of_all is None else of_all[self._indices]

  def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
    """Loads the example at int64 `index` from the wrapped source."""
    return super().load(tf.gather(self._indices, index))

  def augmented(self, index: tf.Tensor, seed: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the training example, augmented if the wrapped source augments; see `Augmented`."""
    return variant(self._source, tf.gather(self._indices, index), seed)

  def digest(self) -> str | None:
    """Returns a digest of its examples, if the wrapped source has one; see `ExampleSource`."""
    of_all = super().digest()
    return of_all and hashed(np.array(of_all), self._indices)

  def keep_apart(self, indices: np.ndarray) -> None:
    """Calls it for the wrapped source; `indices` are those of this one."""
    super().keep_apart(self._indices[indices])


def train_validation_split(source: ImageSource, validation_split: float,
                           labels: np.ndarray | None = None) -> tuple[Subset, Subset]:
  """Splits a source into a training part and a held-out fraction, by a fixed permutation.

  The split is stratified by class. A class with two or more images has at least one in both parts.
  The only image of a class is trained on, unless all classes have a single image. Classes are those
  of `labels`, int [size]; by default those of the source, if it has labels.

  Raises:
    UsageError: a part would be empty.
  """
  count = round(validation_split * source.size)
  if not 0 < count < source.size:
    raise UsageError(f"validation_split = {validation_split}: holds out {count} of {source.size} "
                     "images, but both parts need some; use a fraction such as 0.2")
  order = np.random.default_rng(_SEED).permutation(source.size)
  found: Any = getattr(source, "labels", None) if labels is None else labels
  has_shares = found is not None and np.bincount(found).max() > 1
  is_held = _is_held(found[order] if has_shares else np.zeros(source.size, int), count)
  held, trained = order[is_held], order[~is_held]
  if len(held) != count:
    logging.warning("validation_split = %s: %d of %d images are held out, since each class has "
                    "some in both parts, or its only image in the training part",
                    validation_split, len(held), source.size)
  _keep_apart(source, held)
  return Subset(source, trained), Subset(source, held)


def _is_held(labels: np.ndarray, count: int) -> np.ndarray:
  """Returns which of n examples to hold out, the first of each class: bool [n], labels int [n].

  It holds out `count`, or as close to it as the classes allow.
  """
  sizes = np.bincount(labels)
  exact = count * sizes / len(labels)
  wanted = np.floor(exact).astype(int)
  largest = np.argsort(wanted - exact, kind="stable")  # The largest remainders come first.
  wanted[largest[:count - wanted.sum()]] += 1
  wanted = np.minimum(np.maximum(wanted, 1), sizes - 1)
  by_class = np.argsort(labels, kind="stable")
  ranks = np.empty(len(labels), int)  # Within the class.
  ranks[by_class] = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
  return ranks < wanted[labels]


def _keep_apart(source: ImageSource, indices: np.ndarray) -> None:
  if hasattr(source, "keep_apart"):
    source.keep_apart(indices)


def drawn_by_numpy(draw: Callable, arguments: Sequence[tf.Tensor], image_shape: tuple[int, int, int]
                   ) -> dict[str, tf.Tensor]:
  """Returns the example from a NumPy function `draw(*arguments)`: (uint8 `image_shape`, int32 []).

  If the first argument is a vector [n], it returns n examples: (uint8 [n, ...], int32 [n]).
  """
  # Stateful functions are not called in parallel if operations must be deterministic.
  image, label = tf.numpy_function(draw, arguments, [tf.uint8, tf.int32], stateful=False)
  shape = arguments[0].shape
  return {"image": tf.ensure_shape(image, [*shape, *image_shape]),
          "label": tf.ensure_shape(label, shape)}


def hashed(*arrays: np.ndarray) -> str:
  """Returns a digest of arrays, their shapes and dtypes, for a source's `digest`."""
  digest = hashlib.sha256()
  for array in arrays:
    digest.update(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
  return digest.hexdigest()[:32]


def read(source: ImageSource, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Reads images uint8 [n, h, w, c] and labels int32 [n] of the examples at `indices` [n]."""
  parts = list(batches(Subset(source, indices), _BATCH))
  return (np.concatenate([part["image"] for part in parts]),
          np.concatenate([part["label"] for part in parts]))


class _Labels(SourceOf):
  """Only the labels of a source, without images."""

  def load(self, index: tf.Tensor) -> tf.Tensor:
    """Returns the label at int64 `index`."""
    return super().load(index)["label"]


def labels_of(source: ImageSource) -> np.ndarray:
  """Returns the labels of all examples, int32 [n], loading them if the source lacks them."""
  found = getattr(source, "labels", None)
  return np.concatenate(list(batches(_Labels(source), _BATCH))) if found is None else found


def classes_of(source: ImageSource) -> Classes:
  """Returns the classes of a source, with their numbers of examples."""
  return Classes.of(labels_of(source), source.class_names)


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
