"""A folder of image files, one sub-folder per class, read once into memory."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import gin
import numpy as np
from absl import logging

from models.vision.images import InMemoryImages
from replicator.errors import UsageError

if TYPE_CHECKING:
  from PIL import Image

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png")
"""What names of image files end with, in lower case."""

_ON_ERROR = ("raise", "skip")


@gin.configurable
class ImageFolder(InMemoryImages):
  """Images of `path/<class>/**`, center-cropped and resized: an `ImageSource` of [r, r, 3].

  Classes are the sub-folders that hold at least one .jpg, .jpeg, .png, .bmp or .gif file, at any
  depth, in sorted order. Files are sorted too, so example `i` is always the same one. Other files,
  and names that begin with a dot, are skipped. Images are rotated by their EXIF orientation, gray
  becomes RGB, transparency becomes white, and an animation gives its first frame.

  A pool of threads decodes everything at construction, into `3 * resolution**2` bytes an image:
  10,000 images take 31 MB at 32 pixels and 492 MB at 128. The peak, while reading and when a
  pipeline starts, is up to three times that.
  """

  def __init__(self, path: str, resolution: int, on_error: str = "raise") -> None:
    """Reads the folder.

    Args:
      path: the folder.
      resolution: height and width of the examples, in pixels.
      on_error: what to do with a file that cannot be decoded: 'raise' stops with its name, 'skip'
        skips it and logs how many were skipped.

    Raises:
      UsageError: `path` is not a folder or has no images in sub-folders, a file cannot be
        decoded (or none can), or `resolution` or `on_error` has a wrong value.
    """
    if on_error not in _ON_ERROR:
      raise UsageError(f"ImageFolder.on_error = {on_error!r}: write 'raise' or 'skip'.")
    if not isinstance(resolution, int) or resolution < 1:
      raise UsageError(
          f"ImageFolder.resolution = {resolution!r}: write a positive number of pixels.")
    class_names, files, labels = _list(path)
    images, failures = _decode(files, resolution, stop_at_failure=on_error == "raise")
    if len(failures) == len(files):
      raise UsageError(f"ImageFolder.path = {str(path)!r}: none of its {len(files):,} image files "
                       f"can be read; the first is {files[0]} ({failures[0]}).")
    if failures:
      images, labels = np.delete(images, list(failures), 0), np.delete(labels, list(failures))
      names = ", ".join(str(files[i]) for i in list(failures)[:3])
      more = ", ..." if len(failures) > 3 else ""
      logging.warning("ImageFolder skipped %d of %d files that cannot be read: %s%s",
                      len(failures), len(files), names, more)
    logging.info("ImageFolder read %d images of %d classes from %s",
                 len(images), len(class_names), path)
    super().__init__(images, labels, class_names)


def read_folder(path: str, image_shape: tuple[int, int, int], count: int
                ) -> tuple[np.ndarray, int]:
  """The first images anywhere in a folder, as an `ImageFolder` reads them.

  Args:
    path: the folder; its files are sorted by their paths.
    image_shape: (height, width, channels) that they get; one channel is the luminance.
    count: how many to read at most.

  Returns:
    uint8 `[n, *image_shape]`, and the number of images in the folder.

  Raises:
    UsageError: there is no such folder, it has no image, or one cannot be decoded.
  """
  from PIL import Image
  root = Path(path).expanduser()
  if not root.is_dir():
    raise UsageError(f"{path}: no such folder; write the path of a folder of images")
  files = images_under(root)
  if not files:
    raise UsageError(f"{path}: has no images (file types: {' '.join(SUFFIXES)})")
  images, _ = _decode(files[:count], image_shape[0], stop_at_failure=True)
  if image_shape[2] == 1:
    gray = [np.asarray(Image.fromarray(image).convert("L")) for image in images]
    images = np.stack(gray)[..., np.newaxis]
  return images, len(files)


def _list(path: str) -> tuple[tuple[str, ...], list[Path], np.ndarray]:
  """The class names, every image file in order, and the label of each [n]."""
  root = Path(path).expanduser()
  layout = "one sub-folder of images per class, such as cats/001.jpg and dogs/001.jpg"
  if root.is_file():
    raise UsageError(f"ImageFolder.path = {str(path)!r}: is a file. Unpack it if it is an archive, "
                     f"and write the path of a folder with {layout}.")
  if not root.is_dir():
    raise UsageError(f"ImageFolder.path = {str(path)!r}: no such folder. Write the path of a "
                     f"folder with {layout}.")
  by_class = {folder.name: images_under(folder) for folder in sorted(root.iterdir())
              if folder.is_dir() and not folder.name.startswith(".")}
  by_class = {name: files for name, files in by_class.items() if files}
  if not by_class and (flat := images_under(root)):
    raise UsageError(f"ImageFolder.path = {str(path)!r}: no image in any sub-folder, but "
                     f"{len(flat):,} in the folder itself. Expected {layout}; images without "
                     f"classes may all be in one sub-folder, such as {root.name}/all.")
  if not by_class:
    raise UsageError(f"ImageFolder.path = {str(path)!r}: no image in any sub-folder. Expected "
                     f"{layout} (file types: {' '.join(SUFFIXES)}).")
  counts = [len(files) for files in by_class.values()]
  files = [file for files in by_class.values() for file in files]
  return tuple(by_class), files, np.repeat(np.arange(len(counts)), counts)


def images_under(folder: Path) -> list[Path]:
  """The image files at any depth, in sorted order, without those whose names begin with a dot."""
  return sorted(file for file in folder.rglob("*")
                if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")
                and file.is_file())


def _decode(files: list[Path], resolution: int,
            stop_at_failure: bool) -> tuple[np.ndarray, dict[int, str]]:
  """Images uint8 [n, r, r, 3], and the errors of files that cannot be read, by position."""
  images = np.empty([len(files), resolution, resolution, 3], np.uint8)
  failures: dict[int, str] = {}

  def decode(position: int) -> str:
    try:
      images[position] = _picture(files[position], resolution)
    except Exception as error:  # Pillow raises errors of many types for broken files.
      return " ".join(str(error).split()) or type(error).__name__
    return ""

  with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow decodes without the GIL.
    for position, failure in enumerate(pool.map(decode, range(len(files)))):
      if failure and stop_at_failure:
        pool.shutdown(wait=False, cancel_futures=True)
        raise UsageError(f"{files[position]} cannot be read as an image ({failure}). To skip "
                         "such files, set ImageFolder.on_error = 'skip'.")
      if failure:
        failures[position] = failure
  return images, failures


def _picture(file: Path, resolution: int) -> np.ndarray:
  """The center square of one image file, at `resolution`: uint8 [r, r, 3]."""
  from PIL import Image
  with Image.open(file) as image:
    # A JPEG that is much too large is decoded at a fraction of its size.
    image.draft(None, (2 * resolution, 2 * resolution))
    return np.asarray(center_square(upright_rgb(image), resolution))


def upright_rgb(image: "Image.Image") -> "Image.Image":
  """An image rotated by its EXIF orientation, in RGB, on white where it is transparent."""
  from PIL import Image, ImageOps
  upright = ImageOps.exif_transpose(image)
  if upright.has_transparency_data:
    upright = upright.convert("RGBA")
    upright = Image.alpha_composite(Image.new("RGBA", upright.size, "white"), upright)
  return upright.convert("RGB")


def center_square(image: "Image.Image", resolution: int) -> "Image.Image":
  """The center square of an image, resized to `resolution` by Pillow's bicubic filter."""
  from PIL import Image
  side = min(image.size)
  left, top = (image.width - side) // 2, (image.height - side) // 2
  # Not `resize(box=...)`, whose filter reads pixels outside of the box.
  square = image.crop((left, top, left + side, top + side))
  return square.resize((resolution, resolution), Image.Resampling.BICUBIC)
