"""Encoded images, such as the files of a folder, as a source: decoded as they are drawn."""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from models.vision.images import labels as labels_lib
from models.vision.images.decode import Original, Shape, View, decode, opened
from models.vision.images.image_source import InMemoryImages, drawn_by_numpy, hashed
from models.vision.images.thread_map import in_threads, map_in_threads
from replicator import UsageError
from replicator.errors import at_least_one, first_line

import numpy as np
import tensorflow as tf
from absl import logging

MEMORY_LIMIT = 2 ** 31
"""Bytes of decoded images that a source keeps at most, unless gin says otherwise."""


class EncodedImages(Protocol):
  """Numbered images, encoded as JPEG, PNG, ..., with a label each."""

  path: str  # Where they are, as the user wrote it.
  labels: np.ndarray  # int [n], which index `class_names`.
  class_names: tuple[str, ...]  # One name per label, in label order.
  # The side of all images, which are squares; None if they have their own sizes.
  image_shape: Shape | None = None
  _files: Sequence[str] = ()

  def name(self, index: int) -> str:
    """The image in words that lead a person to it, such as the path of its file."""
    ...

  def read(self, index: int) -> bytes:
    """The content of its file; many threads may call it at once.

    Raises:
      UsageError: the file that holds it is not the one that was opened; this ends the run.
      Exception: this image cannot be read, which may be skipped.
    """
    ...

  def files(self) -> Iterable[str]:
    """The paths of the files that hold all images."""
    return self._files

  def facts(self) -> Sequence[np.ndarray]:
    """Arrays [n] that tell the images from others, wherever they lie, without reading them."""
    return ()


class DecodedImages:
  """An `ImageSource` of center squares [r, r, channels] of encoded images, which are `encoded`.

  If all images fit into `memory_limit` bytes, a pool of threads decodes them at construction.
  Otherwise each is decoded whenever it is drawn, and nothing is kept; what a run sees is the same.

  An image that cannot be decoded ends the run, or is skipped. Images in memory do not include
  skipped ones. Where images are decoded as they are drawn, the next one that can be read takes the
  place of a skipped one, so that step s still has the same examples on any number of workers. It is
  of the same part, where a part is held out.
  """

  batched = True

  def __init__(self, encoded: EncodedImages, resolution: int, on_error: str = "raise",
               memory_limit: int = MEMORY_LIMIT, channels: int = 3) -> None:
    """Decodes the images, if they fit.

    Args:
      encoded: the images.
      resolution: height and width of the examples, in pixels.
      on_error: what to do with an image that cannot be decoded: 'raise' stops with its name,
        'skip' skips it, and logs how many were skipped.
      memory_limit: bytes of decoded images to keep; an image takes `channels * resolution**2`.
      channels: 3, or 1 for the luminance.

    Raises:
      UsageError: an argument has a wrong value, or an image cannot be decoded (or none can).
    """
    self._owner = type(self).__name__
    if on_error not in ("raise", "skip"):
      raise UsageError(f"{self._owner}.on_error = {on_error!r}: write 'raise' or 'skip'.")
    at_least_one(self._owner, resolution=resolution)
    self.size = len(encoded.labels)
    self.image_shape = (resolution, resolution, channels)
    self.num_classes = len(encoded.class_names)
    self.class_names = encoded.class_names
    self.encoded = encoded
    self._skips = on_error == "skip"
    self._skipped: dict[int, str] = {}  # The reasons, by the number of the image.
    self._apart: list[frozenset[int]] = []  # Sets of examples that are held out.
    self._lock = threading.Lock()
    self._numbers: Sequence[int] = range(self.size)  # The examples, as `encoded` counts them.
    self._kept = (self._decode_all() if self.size * np.prod(self.image_shape) <= memory_limit
                  else None)
    if self._kept:
      self.size = self._kept.size
    logging.info("%s found %d images of %d classes in %s", self._owner, self.size,
                 self.num_classes, encoded.path)
    labels_lib.report_empty(encoded.labels, self.class_names, f"{self._owner}: {encoded.path}")

  def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
    """The examples at int64 `index` [] or [n]: `{"image": uint8 [..., r, r, c], "label": ...}`."""
    if self._kept:
      return self._kept.load(index)
    return drawn_by_numpy(in_threads(
        lambda index: self._draw(index, lambda file: decode(file, self.image_shape))), [index],
        self.image_shape)

  def keep_apart(self, indices: np.ndarray) -> None:
    """Makes no other image take the place of one of these, if it cannot be read; nor vice versa."""
    self._apart.append(frozenset(np.asarray(indices).tolist()))

  def digest(self) -> str:
    """A digest of the labels, and of the `facts` that are known of the images."""
    return hashed(np.asarray(self.encoded.labels, np.int32), *self.encoded.facts())

  def load_view(self, index: tf.Tensor, seed: tf.Tensor, view: View) -> dict[str, tf.Tensor]:
    """The examples at `index`, as a view shows the whole images; in the form of `load`'s.

    `seed` is what the view is called with, int64 [2] or [n, 2].
    """
    return drawn_by_numpy(in_threads(
        lambda index, seed: self._draw(index, lambda file: view(
            Original(opened(file), file), self.image_shape, *seed.tolist()))), [index, seed],
        self.image_shape)

  def _draw(self, index: np.ndarray, read: Callable[[bytes], np.ndarray]
            ) -> tuple[np.ndarray, np.ndarray]:
    """An image as `read` makes it of the file, or of the next that can be read, and its label."""
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
    """An image of `encoded` as `read` makes it of the file; None if it is to be skipped."""
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
