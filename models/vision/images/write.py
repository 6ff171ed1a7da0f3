"""Writes images: a picture, an animation, or a data set of PNG files in a folder or a ZIP."""

import io
import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from models.vision.images.classes import is_number
from models.vision.images.decode import as_image
from replicator.atomic import created

import numpy as np
from PIL import Image

_NOT_IN_NAMES = re.compile(r"[^\w.]+")  # Characters of class names that file names omit.

Batch = tuple[np.ndarray, np.ndarray | None]
"""Images uint8 `[n, h, w, 1 or 3]`, and their labels int `[n]` or None."""


def write_picture(path: Path, picture: np.ndarray) -> None:
  """Writes a picture to a new PNG file, uint8 `[h, w, 3]`.

  This and the other functions raise a FileExistsError if the path exists.
  """
  with created(path) as temporary:
    Image.fromarray(picture).save(temporary, format="PNG")


def write_animation(path: Path, pictures: Iterable[np.ndarray], milliseconds: int = 80) -> None:
  """Writes a new lossless animated WebP that loops: uint8 `[h, w, 3]` each."""
  first, *others = map(Image.fromarray, pictures)
  with created(path) as temporary:
    first.save(temporary, format="WEBP", save_all=True, append_images=others, lossless=True,
               duration=milliseconds, loop=0)


def write_folder(path: Path, batches: Iterable[Batch], class_names: Sequence[str] = ()) -> None:
  """Writes a new folder of PNG files, and `dataset.json`.

  The names are `00000000.png` or, with labels, `00000000-class3.png` for a class named 3, or
  `00000000-cat.png`. `dataset.json` lists the labels in the format of StyleGAN's data sets:
  `{"labels": [["00000000-class3.png", 3], ...]}`, or null. If class names are not numbers, it also
  has them: `"classes": ["cat", "dog"]`. Gray images become gray files.
  """
  with created(path) as temporary:
    temporary.mkdir()
    for name, content in _files(batches, class_names):
      (temporary / name).write_bytes(content)


def write_zip(path: Path, batches: Iterable[Batch], class_names: Sequence[str] = ()) -> None:
  """Writes a new ZIP of the files of `write_folder`, without further compression."""
  with created(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
    for name, content in _files(batches, class_names):
      archive.writestr(name, content)


def _files(batches: Iterable[Batch], class_names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
  labeled: list[tuple[str, int]] = []
  are_numbers = all(map(is_number, class_names))
  number = 0
  for images, labels in batches:
    for i, image in enumerate(images):
      name = f"{number:08d}"
      if labels is not None:
        label = int(labels[i])
        if are_numbers:
          label = int(class_names[label]) if class_names else label
          name += f"-class{label}"
        else:
          name += "-" + _NOT_IN_NAMES.sub("-", class_names[label])
        labeled.append((f"{name}.png", label))
      yield f"{name}.png", png(image)
      number += 1
  names = {} if are_numbers else {"classes": list(class_names)}
  yield "dataset.json", json.dumps({"labels": labeled or None, **names}).encode()


def png(image: np.ndarray) -> bytes:
  """Encodes an image as PNG, uint8 `[h, w, 1 or 3]`."""
  file = io.BytesIO()
  as_image(image).save(file, format="PNG")
  return file.getvalue()
