"""The data of `benchmarks.input_pipeline`: the same photos as every source reads them.

    ROOT/folder, ROOT/zip.zip, ROOT/tfrecords   JPEG files
    ROOT/arrays                                 their center squares, decoded, in NumPy files
    ROOT/tfds, ROOT/hugging_face                JPEG files, where the packages are installed
"""

import contextlib
import json
import os
import pathlib
import shutil
import zipfile
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
  from models.vision.files.image_folder import ImageFiles

SIZE, QUALITY = (500, 375), 95
_CLASSES, _SHARDS = 10, 4


def make_photos(folder: pathlib.Path, count: int) -> None:
  """Writes JPEG files of 500 x 375 pixels, every fourth upright: parts of scikit-learn's photos."""
  from sklearn.datasets import load_sample_images
  photos = [Image.fromarray(pixels) for pixels in load_sample_images().images]
  for number in range(count):
    random, photo = np.random.default_rng(number), photos[number % len(photos)]
    size = np.array(SIZE if number % 4 else SIZE[::-1])
    share = random.uniform(0.6, 1.0) * min(photo.size / size)
    part = np.floor(size * share)
    corner = np.floor(random.uniform(size=2) * (photo.size - part))
    file = folder / f"class{number % _CLASSES}" / f"{number:06d}.jpg"
    file.parent.mkdir(parents=True, exist_ok=True)
    photo.resize(size, Image.Resampling.BICUBIC, box=(*corner, *(corner + part))).save(
        file, quality=QUALITY)


def make_sources(root: pathlib.Path, names: Collection[str], resolution: int) -> None:
  """Makes the data of the named sources from `ROOT/folder`."""
  from models.vision.convert import convert
  from models.vision.files.image_folder import list_folder
  from models.vision.images.encoded_images import DecodedImages
  from models.vision.images.image_source import read
  files = list_folder(str(root / "folder"))
  with zipfile.ZipFile(root / "zip.zip", "w") as archive:
    for file in files.files():
      archive.write(file, pathlib.Path(file).relative_to(root / "folder"))
  convert(files, str(root / "tfrecords"), _SHARDS)
  images, _ = read(DecodedImages(files, resolution), np.arange(len(files.labels)))
  (root / "arrays").mkdir()
  np.save(root / "arrays" / "images.npy", images)
  np.save(root / "arrays" / "labels.npy", files.labels)
  if "tfds" in names:
    _make_tfds(files, root)
  if "hugging_face" in names:
    _make_hugging_face(files, root / "hugging_face")


def _make_tfds(files: "ImageFiles", root: pathlib.Path) -> None:
  import tensorflow_datasets as tfds
  features = tfds.features.FeaturesDict({
      "image": tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg"),
      "label": tfds.features.ClassLabel(names=files.class_names)})
  rows = ((i, {"image": file, "label": int(label)})
          for i, (file, label) in enumerate(zip(files.files(), files.labels, strict=True)))
  with contextlib.redirect_stdout(None):
    tfds.dataset_builders.store_as_tfds_dataset(
        "photos", "1.0.0", features=features, data_dir=str(root / "tfds"),
        file_format="array_record", disable_shuffling=True, split_datasets={"train": list(rows)})


def _make_hugging_face(files: "ImageFiles", folder: pathlib.Path) -> None:
  import datasets
  datasets.disable_progress_bars()
  features = datasets.Features({
      "image": datasets.Image(), "label": datasets.ClassLabel(names=list(files.class_names))})
  images = [{"bytes": pathlib.Path(file).read_bytes(), "path": None} for file in files.files()]
  datasets.Dataset.from_dict({"image": images, "label": files.labels}, features=features
                             ).save_to_disk(str(folder))


def repeat(root: pathlib.Path, out: pathlib.Path, copies: int) -> None:
  """Makes data with so many times as many images, which takes hardly more space on the disk.

  Files are linked, an archive names the same file many times, and an array is a file with holes.
  """
  for number in range(copies):
    for file in (root / "folder").glob("*/*.jpg"):
      link = out / "folder" / file.parent.name / f"{number:05d}-{file.name}"
      link.parent.mkdir(parents=True, exist_ok=True)
      os.link(file, link)
  _repeat_zip(root / "zip.zip", out / "zip.zip", copies)
  _repeat_shards(root / "tfrecords", out / "tfrecords", copies)
  (out / "arrays").mkdir()
  images, labels = (np.load(root / "arrays" / f"{name}.npy", "r") for name in ("images", "labels"))
  np.lib.format.open_memmap(out / "arrays" / "images.npy", "w+", images.dtype,
                            (copies * len(images), *images.shape[1:]))
  np.save(out / "arrays" / "labels.npy", np.tile(labels, copies))


def _repeat_zip(archive: pathlib.Path, out: pathlib.Path, copies: int) -> None:
  shutil.copy(archive, out)
  with zipfile.ZipFile(out, "a") as repeated:
    repeated.filelist *= copies
    repeated.writestr("copies.txt", str(copies))  # So that the directory is written again.


def _repeat_shards(shards: pathlib.Path, out: pathlib.Path, copies: int) -> None:
  out.mkdir()
  facts = json.loads((shards / "index.json").read_text())
  names = []
  for number in range(copies):
    for name in facts["shards"]:
      names.append(f"{number:05d}-{name}")
      for suffix in (".tfrecord", ".npz"):
        os.link((shards / name).with_suffix(suffix), (out / names[-1]).with_suffix(suffix))
  facts |= {"shards": names, "images": facts["images"] * copies}
  (out / "index.json").write_text(json.dumps(facts))
