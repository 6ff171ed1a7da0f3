"""Files of images: one picture, an animation, and a data set of PNG files in a folder or a ZIP."""

import io
import json
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from models.vision.images.decode import as_image
from replicator.atomic import created

import numpy as np
from PIL import Image

Batch = tuple[np.ndarray, np.ndarray | None]
"""Images uint8 `[n, h, w, 1 or 3]`, and their labels int `[n]` or None."""


def write_picture(path: Path, picture: np.ndarray) -> None:
  """Writes a new PNG file of a picture, uint8 `[h, w, 3]`.

  This and the other functions raise a FileExistsError if there is something of that name.
  """
  with created(path) as temporary:
    Image.fromarray(picture).save(temporary, format="PNG")


def write_animation(path: Path, pictures: Iterable[np.ndarray], milliseconds: int = 80) -> None:
  """Writes a new animated WebP, without loss, that repeats itself: uint8 `[h, w, 3]` each."""
  first, *others = map(Image.fromarray, pictures)
  with created(path) as temporary:
    first.save(temporary, format="WEBP", save_all=True, append_images=others, lossless=True,
               duration=milliseconds, loop=0)


def write_folder(path: Path, batches: Iterable[Batch]) -> None:
  """Writes a new folder of PNG files, and `dataset.json`.

  The names are `00000000.png` or, with labels, `00000000-class3.png`. `dataset.json` lists the
  labels in the layout of StyleGAN's data sets: `{"labels": [["00000000-class3.png", 3], ...]}`,
  or null. Gray images are gray files.
  """
  with created(path) as temporary:
    temporary.mkdir()
    for name, content in _files(batches):
      (temporary / name).write_bytes(content)


def write_zip(path: Path, batches: Iterable[Batch]) -> None:
  """Writes a new ZIP of the files of `write_folder`, which are not compressed once more."""
  with created(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
    for name, content in _files(batches):
      archive.writestr(name, content)


def _files(batches: Iterable[Batch]) -> Iterator[tuple[str, bytes]]:
  labeled: list[tuple[str, int]] = []
  number = 0
  for images, labels in batches:
    for i, image in enumerate(images):
      name = f"{number:08d}"
      if labels is not None:
        name += f"-class{labels[i]}"
        labeled.append((f"{name}.png", int(labels[i])))
      yield f"{name}.png", png(image)
      number += 1
  yield "dataset.json", json.dumps({"labels": labeled or None}).encode()


def png(image: np.ndarray) -> bytes:
  """The content of a PNG file of an image, uint8 `[h, w, 1 or 3]`."""
  file = io.BytesIO()
  as_image(image).save(file, format="PNG")
  return file.getvalue()
