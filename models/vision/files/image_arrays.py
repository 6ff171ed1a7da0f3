"""Arrays of images in NumPy files, read where they lie."""

import os
import zipfile
from pathlib import Path

import gin
import numpy as np
import tensorflow as tf

from models.vision.images import labels as labels_lib
from models.vision.images.image_source import drawn_by_numpy, hashed
from replicator import UsageError


@gin.configurable
class ImageArrays:
  """Images of a NumPy archive, or of a folder of `.npy` files: an `ImageSource`.

  The images are an array uint8 [n, h, w, c], c = 1 or 3, or [n, h, w] of gray ones; the labels are
  integers [n] from 0 on. The file of the images is mapped into memory: what is drawn is read from
  the disk, and may be larger than memory. So an archive must not be compressed: write it with
  `numpy.savez(path, images=images, labels=labels)`.
  """

  batched = True

  def __init__(self, path: str, images: str = "images", labels: str | None = "labels") -> None:
    """Opens the arrays.

    Args:
      path: an `.npz` file, or a folder of `.npy` files.
      images: the name of the array of images, without `.npy`.
      labels: the name of the array of labels; None for images of one class.

    Raises:
      UsageError: there is no such file or array, it is compressed or truncated, or it does not have
        the shape or the type of images or labels. `load` raises one if the file changed since.
    """
    self._path = str(path)
    self._file = Path(path).expanduser()
    if self._file.is_dir():
      self._file /= f"{images}.npy"
    self._images = self._checked_images(images)
    self._written = _written(self._file)
    self.size, *shape = self._images.shape
    self.image_shape = tuple(shape)
    self._labels, self.class_names = (labels_lib.of_one(self.size) if labels is None
                                      else self._checked_labels(labels))
    self.num_classes = len(self.class_names)
    labels_lib.report_empty(self._labels, self.class_names, f"ImageArrays: {self._path}")

  def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
    """The examples at int64 `index` [] or [n]: `{"image": uint8 [..., h, w, c], "label": ...}`."""
    return drawn_by_numpy(self._draw, [index], self.image_shape)

  def digest(self) -> str:
    """A digest of the labels and of the shape of the images; see `training.inputs`."""
    return hashed(np.asarray(self._labels, np.int32), np.array(self._images.shape, np.int64))

  def _draw(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if _written(self._file) != self._written:  # To read what a file lacks would end the process.
      raise UsageError(f"{self._file}: changed since it was opened, so its images may no longer be "
                       "those of the labels; start again, and leave it as it is meanwhile")
    return np.ascontiguousarray(self._images[index]), self._labels[index]

  def _checked_images(self, name: str) -> np.ndarray:
    images = self._mapped("images", name)
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or not len(images) or (
        images.ndim == 4 and images.shape[-1] not in (1, 3)):
      raise UsageError(f"ImageArrays.images = {name!r}: is {images.dtype} "
                       f"{list(images.shape)} in {self._path}; images are uint8 [n, h, w, 1 or 3]")
    return images[..., np.newaxis] if images.ndim == 3 else images

  def _checked_labels(self, name: str) -> labels_lib.Labels:
    labels, setting = self._mapped("labels", name), f"ImageArrays.labels = {name!r}"
    if labels.dtype.kind not in "iu" or labels.shape != (self.size,):
      raise UsageError(f"{setting}: is {labels.dtype} {list(labels.shape)} in {self._path}; labels "
                       f"of these images are integers [{self.size}]")
    return labels_lib.from_numbers(labels, setting)

  def _mapped(self, parameter: str, name: str) -> np.ndarray:
    """An array of the archive or folder, mapped into memory."""
    file, setting = Path(self._path).expanduser(), f"ImageArrays.path = {self._path!r}"
    if not file.exists():
      raise UsageError(f"{setting}: no such file; write an .npz file, or a folder of .npy files")
    found = ([each.stem for each in sorted(file.glob("*.npy"))] if file.is_dir()
             else _names_in(file, setting))
    if name not in found:
      raise UsageError(f"ImageArrays.{parameter} = {name!r}: no such array in {self._path}; it "
                       f"has: {', '.join(found) or 'none'}"
                       + "; write None if images have no classes" * (parameter == "labels"))
    try:
      return (np.load(file / f"{name}.npy", "r") if file.is_dir() else _map_in_zip(file, name))
    except UsageError:
      raise
    except Exception as error:  # NumPy and zipfile raise errors of many types for broken files.
      where = file / f"{name}.npy" if file.is_dir() else f"{file}: {name}.npy"
      raise UsageError(f"{where}: is not a whole array of numbers ({error}); write it again"
                       ) from error


def _written(file: Path) -> tuple[int, int] | None:
  """The size of a file, and when it was written; None if it is gone."""
  try:
    found = os.stat(file)
  except OSError:
    return None
  return found.st_size, found.st_mtime_ns


def _names_in(file: Path, setting: str) -> list[str]:
  try:
    with zipfile.ZipFile(file) as archive:
      return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
  except (zipfile.BadZipFile, OSError) as error:
    raise UsageError(f"{setting}: is not a NumPy archive, or a truncated one ({error}); write it "
                     "with numpy.savez") from error


def _map_in_zip(path: Path, name: str) -> np.ndarray:
  """An array of an archive, mapped into memory; raises a UsageError if it is compressed."""
  with zipfile.ZipFile(path) as archive:
    entry = archive.getinfo(f"{name}.npy")
    if entry.compress_type != zipfile.ZIP_STORED:
      raise UsageError(f"{path}: {name} is compressed, and cannot be read in parts; write the "
                       "archive with numpy.savez, not numpy.savez_compressed")
    with archive.open(entry) as member:
      np.lib.format.read_magic(member)
      shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(member)
      header_bytes = member.tell()
  if dtype.hasobject:
    raise ValueError("it has Python objects")
  with path.open("rb") as file:
    file.seek(entry.header_offset + 26)  # Where the lengths of a name and of extra fields are.
    offset = entry.header_offset + 30 + int(sum(np.frombuffer(file.read(4), "<u2"))) + header_bytes
    return np.memmap(file, dtype, "r", offset, shape, "F" if is_fortran else "C")
