"""Encoded images, such as files in a folder, as a source that decodes them when drawn."""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from models.vision.images import labels as labels_lib
from models.vision.images.decode import Original, Shape, View, decode, opened
from models.vision.images.image_source import InMemoryImages, Labeled, drawn_by_numpy, hashed
from models.vision.images.thread_map import in_threads, map_in_threads
from replicator import UsageError
from replicator.errors import at_least_one, first_line

import numpy as np
import tensorflow as tf
from absl import logging

MEMORY_LIMIT = 2 ** 31
"""Default maximum bytes of decoded images that a source keeps."""


class EncodedImages(Protocol):
  """Numbered, labeled images, encoded as JPEG, PNG, ..."""

  path: str  # Their location, as the user wrote it.
  labels: np.ndarray  # int [n], which index `class_names`.
  class_names: tuple[str, ...]  # One name per label, in label order.
  # The shape of all images, which are square; None if their sizes differ.
  image_shape: Shape | None = None
  unlabeled: str = ""  # Why a list of labels was not used, if all are of one class.
  _files: Sequence[str] = ()

  def name(self, index: int) -> str:
    """Returns a description that lets a person find the image, such as its file's path."""
    ...

  def read(self, index: int) -> bytes:
    """Returns the content of its file; many threads may call it at once.

    Raises:
      UsageError: the file that contains it has changed since it was opened; this ends the run.
      Exception: this image cannot be read, and may be skipped.
    """
    ...

  def files(self) -> Iterable[str]:
    """Returns the paths of the files that contain the images."""
    return self._files

  def facts(self) -> Sequence[np.ndarray]:
    """Returns arrays [n] that identify the images, wherever they are, without reading them."""
    return ()


class DecodedImages(Labeled):
  """An `ImageSource` of center squares [r, r, channels] of the images `encoded`.

  If all images fit into `memory_limit` bytes, a thread pool decodes them at construction. Otherwise
  each is decoded whenever it is drawn, and nothing is kept. A run sees the same examples
  either way.

  An image that cannot be decoded ends the run, or is skipped. Images in memory do not include
  skipped ones. If images are decoded when drawn, a skipped one is replaced with the next readable
  one, so that step s has the same examples on any number of workers. Replacements come from the
  same side of a validation split.
  """

  batched = True

  def __init__(self, encoded: EncodedImages, resolution: int, on_error: str = "raise",
               memory_limit: int = MEMORY_LIMIT, channels: int = 3) -> None:
    """Decodes the images, if they fit into `memory_limit`.

    Args:
      encoded: the images.
      resolution: height and width of the examples, in pixels.
      on_error: what to do with an image that cannot be decoded: 'raise' stops with its name,
        'skip' skips it, and logs how many were skipped.
      memory_limit: bytes of decoded images to keep; an image takes `channels * resolution**2`.
      channels: 3, or 1 for luminance.

    Raises:
      UsageError: an argument is invalid, or an image cannot be decoded (or none can).
    """
    self._owner = type(self).__name__
    if on_error not in ("raise", "skip"):
      raise UsageError(f"{self._owner}.on_error = {on_error!r}: write 'raise' or 'skip'.")
    at_least_one(self._owner, resolution=resolution)
    self.size = len(encoded.labels)
    self.image_shape = (resolution, resolution, channels)
    self.class_names = encoded.class_names
    self.encoded = encoded
    self.labels = np.asarray(encoded.labels, np.int32)
    self._skips = on_error == "skip"
    self._skipped: dict[int, str] = {}  # The reasons, by the number of the image.
    self._apart: list[frozenset[int]] = []  # Sets of held-out examples.
    self._lock = threading.Lock()
    self._numbers: Sequence[int] = range(self.size)  # The number in `encoded` of each example.
    self._kept = (self._decode_all() if self.size * np.prod(self.image_shape) <= memory_limit
                  else None)
    if self._kept:
      self.size, self.labels = self._kept.size, self._kept.labels
    labels_lib.report_empty(encoded.labels, self.class_names, f"{self._owner}: {encoded.path}")

  def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
    """Loads examples at int64 `index` [] or [n]: `{"image": uint8 [..., r, r, c], "label"}`."""
    if self._kept:
      return self._kept.load(index)
    return drawn_by_numpy(in_threads(
        lambda index: self._draw(index, lambda file: decode(file, self.image_shape))), [index],
        self.image_shape)

  def keep_apart(self, indices: np.ndarray) -> None:
    """Never replaces unreadable images at these indices with images elsewhere, or vice versa."""
    self._apart.append(frozenset(np.asarray(indices).tolist()))

  def digest(self) -> str:
    """Returns a digest of the labels, and of the `facts` about the images."""
    return hashed(np.asarray(self.encoded.labels, np.int32), *self.encoded.facts())

  def load_view(self, index: tf.Tensor, seed: tf.Tensor, view: View) -> dict[str, tf.Tensor]:
    """Loads examples at `index` like `load`, but through a view of the whole images.

    The view is called with `seed`, int64 [2] or [n, 2].
    """
    return drawn_by_numpy(in_threads(
        lambda index, seed: self._draw(index, lambda file: view(
            Original(opened(file), file), self.image_shape, *seed.tolist()))), [index, seed],
        self.image_shape)

  def _draw(self, index: np.ndarray, read: Callable[[bytes], np.ndarray]
            ) -> tuple[np.ndarray, np.ndarray]:
    """Reads an image, or the next readable one, with `read`; returns it and its label."""
    part_of = lambda place: [place in each for each in self._apart]
    for further in range(self.size):
      place = (int(index) + further) % self.size
      if part_of(place) != part_of(int(index)):
        continue
      i = self._numbers[place]
      image = self._image(i, read)
      if image is not None:
        return image, np.asarray(self.encoded.labels[i], np.int32)
    raise self._none_readable()

  def _image(self, i: int, read: Callable[[bytes], np.ndarray]) -> np.ndarray | None:
    """Reads an image of `encoded` with `read`; returns None to skip it."""
    try:
      return read(self.encoded.read(i))
    except UsageError:
      raise
    except Exception as error:
      name, reason = self.encoded.name(i), first_line(error)
      if not self._skips:
        raise UsageError(f"{name} cannot be read as an image ({reason}). To skip such files, set "
                         f"{self._owner}.on_error = 'skip'.") from error
    with self._lock:
      if i not in self._skipped:
        self._skipped[i] = reason
        logging.warning("%s skips %s, which cannot be read (%s): %d of %d images so far",
                        self._owner, name, reason, len(self._skipped), self.size)
    return None

  def _none_readable(self) -> UsageError:
    first = min(self._skipped)
    return UsageError(f"{self._owner}.path = {self.encoded.path!r}: none of its {self.size:,} "
                      f"image files can be read, such as {self.encoded.name(first)} "
                      f"({self._skipped[first]}).")

  def _decode_all(self) -> InMemoryImages:
    images, labels = np.empty([self.size, *self.image_shape], np.uint8), self.encoded.labels

    def keep(i: int) -> bool:
      image = self._image(i, lambda file: decode(file, self.image_shape))
      if image is not None:
        images[i] = image
      return image is not None

    is_kept = np.array(list(map_in_threads(keep, range(self.size))))
    if not is_kept.any():
      raise self._none_readable()
    if not is_kept.all():
      self._numbers = np.flatnonzero(is_kept).tolist()
      images, labels = images[is_kept], labels[is_kept]
    return InMemoryImages(images, labels, self.class_names)
