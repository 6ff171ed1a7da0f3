"""Arrays of images in NumPy files."""

import os
from pathlib import Path

from models.vision.images import labels as labels_lib
from models.vision.images.image_source import Labeled, drawn_by_numpy, hashed
from replicator import UsageError
from replicator.errors import first_line

import gin
import numpy as np
import tensorflow as tf


@gin.configurable
class ImageArrays(Labeled):
  """Images of a NumPy archive, or of a folder of `.npy` files: an `ImageSource`.

  The images are an array uint8 [n, h, w, c], c = 1 or 3, or [n, h, w] if gray; the labels are
  integers [n] from 0 on, or class names. An archive, as written by `numpy.savez(path,
  images=images, labels=labels)`, is read into memory. The files of a folder are memory-mapped:
  images are read from disk when drawn, so the data may be larger than memory. Unpacking an archive
  makes such a folder.
  """

  batched = True
  labels: np.ndarray

  def __init__(self, path: str, images: str = "images", labels: str | None = "labels") -> None:
    """Opens the arrays.

    Args:
      path: an `.npz` file, or a folder of `.npy` files.
      images: the name of the array of images, without `.npy`.
      labels: the name of the array of labels; None for images of one class.

    Raises:
      UsageError: there is no such file or array, it is truncated, or it does not have the shape or
        dtype of images or labels. `load` also raises one if the file has changed.
    """
    self._path = str(path)
    self._file = Path(path).expanduser()
    if self._file.is_dir():
      self._file /= f"{images}.npy"
    self._images = self._checked_images(images)
    self._written = _written(self._file)
    self.size, *shape = self._images.shape
    self.image_shape = tuple(shape)
    self.labels, self.class_names = (labels_lib.of_one(self.size) if labels is None
                                     else self._checked_labels(labels))

  def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
    """Loads examples at int64 `index` [] or [n]: `{"image": uint8 [..., h, w, c], "label"}`."""
    return drawn_by_numpy(self._draw, [index], self.image_shape)

  def digest(self) -> str:
    """Returns a digest of the labels and of the shape of the images; see `ExampleSource`."""
    return hashed(np.asarray(self.labels, np.int32), np.array(self._images.shape, np.int64))

  def _draw(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if _written(self._file) != self._written:  # Reading past a file's end would kill the process.
      raise UsageError(f"{self._file}: changed since it was opened, so its images may no longer "
                       "match the labels; start again, and do not change it during the run")
    return np.ascontiguousarray(self._images[index]), self.labels[index]

  def _checked_images(self, name: str) -> np.ndarray:
    images = self._read("images", name)
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or not len(images) or (
        images.ndim == 4 and images.shape[-1] not in (1, 3)):
      raise UsageError(f"ImageArrays.images = {name!r}: is {images.dtype} "
                       f"{list(images.shape)} in {self._path}; must be uint8 [n, h, w, 1 or 3]")
    return images[..., np.newaxis] if images.ndim == 3 else images

  def _checked_labels(self, name: str) -> labels_lib.Labels:
    labels, setting = self._read("labels", name), f"ImageArrays.labels = {name!r}"
    if labels.shape != (self.size,):
      raise UsageError(f"{setting}: is {labels.dtype} {list(labels.shape)} in {self._path}; must "
                       f"be integers or class names, [{self.size}], for these images")
    return labels_lib.from_values(labels, f"{setting} in {self._path}")

  def _read(self, parameter: str, name: str) -> np.ndarray:
    """Reads an array of the archive, or memory-maps one of the folder."""
    file = Path(self._path).expanduser()
    if not file.exists():
      raise UsageError(f"ImageArrays.path = {self._path!r}: no such file; use an .npz file, or a "
                       "folder of .npy files")
    where = file / f"{name}.npy" if file.is_dir() else file
    try:
      if file.is_dir():
        found = sorted(each.stem for each in file.glob("*.npy"))
        array = np.load(where, "r") if name in found else None
      else:
        with file.open("rb") as content, np.lib.npyio.NpzFile(content) as archive:
          found = archive.files
          array = archive[name] if name in found else None
    except Exception as error:  # NumPy and zipfile raise errors of many types for broken files.
      raise UsageError(f"{where}: is not a NumPy file, or an incomplete one "
                       f"({first_line(error)}); save it again") from error
    if array is None:
      raise UsageError(f"ImageArrays.{parameter} = {name!r}: no such array in {self._path}; it "
                       f"has: {', '.join(found) or 'none'}"
                       + "; use None if images have no classes" * (parameter == "labels"))
    return array


def _written(file: Path) -> tuple[int, int] | None:
  """Returns the size and modification time of a file; None if it is gone."""
  try:
    found = os.stat(file)
  except OSError:
    return None
  return found.st_size, found.st_mtime_ns
