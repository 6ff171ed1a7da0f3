"""Encoded images, such as the files of a folder, as a source: decoded as they are drawn."""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf
from absl import logging

from models.vision.images.decode import Original, View, decode, opened
from models.vision.images.image_source import InMemoryImages, drawn_by_numpy
from models.vision.images.thread_map import in_threads, map_in_threads
from replicator import UsageError

MEMORY_LIMIT = 2 ** 31
"""Bytes of decoded images that a source keeps at most, unless gin says otherwise."""

_ON_ERROR = ("raise", "skip")


class EncodedImages(Protocol):
  """Numbered images of any sizes, encoded as JPEG, PNG, ..., with a label each.

  Attributes:
    path: where they are, as the user wrote it.
    labels: int [n], which index `class_names`.
    class_names: one name per label, in label order.
  """

  path: str
  labels: np.ndarray
  class_names: tuple[str, ...]

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
    ...


class DecodedImages:
  """An `ImageSource` of center squares [r, r, channels] of encoded images, which are `encoded`.

  If all images fit into `memory_limit` bytes, a pool of threads decodes them at construction.
  Otherwise each is decoded whenever it is drawn, and nothing is kept; what a run sees is the same.

  An image that cannot be decoded ends the run, or is skipped. Images in memory do not include
  skipped ones. Where images are decoded as they are drawn, the next one that can be read takes the
  place of a skipped one, so that step s still has the same examples on any number of workers.
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
    if on_error not in _ON_ERROR:
      raise UsageError(f"{self._owner}.on_error = {on_error!r}: write 'raise' or 'skip'.")
    if not isinstance(resolution, int) or resolution < 1:
      raise UsageError(
          f"{self._owner}.resolution = {resolution!r}: write a positive number of pixels.")
    self.size = len(encoded.labels)
    self.image_shape = (resolution, resolution, channels)
    self.num_classes = len(encoded.class_names)
    self.class_names = encoded.class_names
    self.encoded = encoded
    self._skips = on_error == "skip"
    self._skipped: set[int] = set()
    self._lock = threading.Lock()
    self._numbers: Sequence[int] = range(self.size)  # The examples, as `encoded` counts them.
    self._kept = (self._decode_all() if self.size * np.prod(self.image_shape) <= memory_limit
                  else None)
    if self._kept:
      self.size = self._kept.size

  def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
    """The examples at int64 `index` [] or [n].

    Returns `{"image": uint8 [..., r, r, channels], "label": int32}`.
    """
    if self._kept:
      return self._kept.load(index)
    return drawn_by_numpy(in_threads(
        lambda index: self._draw(index, lambda file: decode(file, self.image_shape))), [index],
        self.image_shape)

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
    """An image as `read` makes it of the file, and its label."""
    for further in range(self.size):
      i = self._numbers[(int(index) + further) % self.size]
      try:
        return read(self.encoded.read(i)), np.asarray(self.encoded.labels[i], np.int32)
      except UsageError:
        raise
      except Exception as error:
        if not self._skips:
          raise _unreadable(self.encoded.name(i), reason_of(error), self._owner) from error
        self._count(i, reason := reason_of(error))
    raise self._none_readable(i, reason)

  def _none_readable(self, index: int, reason: str) -> UsageError:
    return UsageError(f"{self._owner}.path = {self.encoded.path!r}: none of its {self.size:,} "
                      f"image files can be read, such as {self.encoded.name(index)} ({reason}).")

  def _count(self, index: int, reason: str) -> None:
    with self._lock:
      if index not in self._skipped:
        self._skipped.add(index)
        logging.warning("%s skips %s, which cannot be read (%s): %d of %d images so far",
                        self._owner, self.encoded.name(index), reason, len(self._skipped),
                        self.size)

  def _decode_all(self) -> InMemoryImages:
    encoded, count = self.encoded, self.size
    images, failures = decode_many(encoded, range(count), self.image_shape,
                                   None if self._skips else self._owner)
    labels = encoded.labels
    if len(failures) == count:
      raise self._none_readable(0, failures[0])
    if failures:
      self._numbers = np.delete(np.arange(count), list(failures)).tolist()
      images, labels = np.delete(images, list(failures), 0), np.delete(labels, list(failures))
      names = ", ".join(encoded.name(i) for i in list(failures)[:3])
      logging.warning("%s skipped %d of %d files that cannot be read: %s%s", self._owner,
                      len(failures), count, names, ", ..." if len(failures) > 3 else "")
    return InMemoryImages(images, labels, self.class_names)


def decode_many(encoded: EncodedImages, indices: Sequence[int],
                image_shape: tuple[int, int, int], stops_for: str | None
                ) -> tuple[np.ndarray, dict[int, str]]:
  """Decodes images with a pool of threads.

  Args:
    encoded: the images.
    indices: which, n of them.
    image_shape: (height, width, channels) that they get.
    stops_for: the gin name of the source that stops at an image that cannot be decoded; or None.

  Returns:
    uint8 `[n, *image_shape]`, and the reasons why others could not be decoded, by position.

  Raises:
    UsageError: an image cannot be decoded; the line names the first.
  """
  images = np.empty([len(indices), *image_shape], np.uint8)
  failures: dict[int, str] = {}

  def at(position: int) -> str:
    try:
      images[position] = decode(encoded.read(indices[position]), image_shape)
    except UsageError:
      raise
    except Exception as error:
      return reason_of(error)
    return ""

  for position, failure in enumerate(map_in_threads(at, range(len(indices)))):
    if failure and stops_for:
      raise _unreadable(encoded.name(indices[position]), failure, stops_for)
    if failure:
      failures[position] = failure
  return images, failures


def _unreadable(name: str, reason: str, owner: str) -> UsageError:
  return UsageError(f"{name} cannot be read as an image ({reason}). To skip such files, set "
                    f"{owner}.on_error = 'skip'.")


def reason_of(error: Exception) -> str:
  """The message of an error in one line."""
  return " ".join(str(error).split()) or type(error).__name__
