"""Decoded and augmented images per second, and memory, of the image sources and of peers.

  pip install grain torch torchvision
  python -m benchmarks.input_pipeline [--photos=DIR] [--memory]

JPEG files of 500 pixels become random-resized crops of 224 pixels, half of which are mirrored. The
files are made from random numbers, or are those of the sub-folders of DIR:

  folder, zip, tfrecords   `Augmented` around `ImageFolder`, `ImageZip`, `TFRecords`: random access
  tf_data, tf_data_shards  plain tf.data over the same files or shards, one after the other
  tf_data_fast             the same over files, without a filter against aliasing
  grain, data_loader       Grain and PyTorch's DataLoader with 2 worker processes, where installed

Every contender is a process of its own, and takes turns with the others. What is buffered when its
turn begins is thrown away first. The table has medians over the turns, and ratios of the medians.

`--memory` shows the resident memory of each source in a process that has read 1,024 images, for
data sets of 1,000 and of 100,000 images. Links make 100 images of one: contents do not count.
"""

import copy
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from absl import app, flags
from PIL import Image

from benchmarks import input_peers, turns
from benchmarks.memory import resident_mib

FLAGS = flags.FLAGS
OURS = ("folder", "zip", "tfrecords")
PEERS = {"tf_data": "tensorflow", "tf_data_shards": "tensorflow", "tf_data_fast": "tensorflow",
         "grain": "grain", "data_loader": "torchvision"}
flags.DEFINE_string("photos", None, "A folder of JPEG files in sub-folders.")
flags.DEFINE_bool("memory", False, "Measure memory, not speed.")
flags.DEFINE_integer("images", 1000, "Images to make.", lower_bound=100)
flags.DEFINE_integer("rounds", 11, "Turns of every contender.", lower_bound=1)
flags.DEFINE_integer("batches", 20, "Batches of one turn.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Images of a batch.", lower_bound=1)
flags.DEFINE_integer("threads", 2, "Threads or worker processes of every contender.", lower_bound=1)
flags.DEFINE_string("data", None, "Where the data is; set by the benchmark.")
flags.DEFINE_enum("contender", None, [*OURS, *PEERS], "Only take turns as this one, on request.")

RESOLUTION, SHARDS, CLASSES = 224, 4, 10
COPIES = 100  # Of each image, for a large data set.
BUFFERED = 8  # Batches that a pipeline has ready at most, when its turn begins.


def make_photos(root: pathlib.Path) -> None:
  """Writes JPEG files with the sides 500 and 375, in sub-folders; about 60 kB each."""
  for number in range(FLAGS.images):
    rng = np.random.default_rng(number)
    size = (500, 375) if number % 4 else (375, 500)
    small = Image.fromarray(rng.integers(0, 256, [24, 32, 3], np.uint8))
    smooth = np.asarray(small.resize(size, Image.Resampling.BICUBIC), np.float32)
    noise = rng.normal(0, 8, smooth.shape).astype(np.float32)
    folder = root / f"class{number % CLASSES}"
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.clip(smooth + noise, 0, 255).astype(np.uint8)).save(
        folder / f"{number:06d}.jpg", quality=90)


def make_data(root: pathlib.Path) -> None:
  """Makes the three sources, and with `--memory` a large version of each."""
  from models.vision.convert import convert
  from models.vision.folder import list_folder
  if FLAGS.photos:
    (root / "folder").symlink_to(pathlib.Path(FLAGS.photos).resolve())
  else:
    make_photos(root / "folder")
  with zipfile.ZipFile(root / "zip.zip", "w") as archive:
    for file in sorted((root / "folder").glob("*/*.jpg")):
      archive.write(file, f"{file.parent.name}/{file.name}")
  convert(list_folder(str(root / "folder")), str(root / "tfrecords"), SHARDS)
  if FLAGS.memory:
    enlarge(root, root / "large")


def enlarge(root: pathlib.Path, large: pathlib.Path) -> None:
  """Makes data sets of 100 times as many images, whose contents are the same."""
  for number in range(COPIES):
    for file in (root / "folder").glob("*/*.jpg"):
      link = large / "folder" / file.parent.name / f"{number:03d}-{file.name}"
      link.parent.mkdir(parents=True, exist_ok=True)
      os.link(file.resolve(), link)
  shutil.copy(root / "zip.zip", large / "zip.zip")
  with zipfile.ZipFile(large / "zip.zip", "a") as archive:
    for info in list(archive.infolist()):
      for number in range(1, COPIES):  # More names for the same place.
        other = copy.copy(info)
        other.filename = info.filename.replace("/", f"/{number:03d}-")
        archive.filelist.append(other)
    archive.writestr("copies.txt", str(COPIES))  # So that the directory is written again.
  (large / "tfrecords").mkdir()
  facts = json.loads((root / "tfrecords" / "index.json").read_text())
  names = []
  for number in range(COPIES):
    for file in sorted((root / "tfrecords").glob("images-*")):
      link = large / "tfrecords" / f"{number:03d}-{file.name}"
      os.link(file, link)
      names += [link.name] if link.suffix == ".tfrecord" else []
  facts |= {"shards": names, "images": facts["images"] * COPIES}
  (large / "tfrecords" / "index.json").write_text(json.dumps(facts))


def ours(name: str, root: pathlib.Path) -> Iterator[Any]:
  """The batches that `replicator.train` would get."""
  from models.vision.augment import Augmented
  from models.vision.folder import ImageFolder
  from models.vision.image_zip import ImageZip
  from models.vision.tfrecords import TFRecords
  from replicator import InputContext
  from replicator.training.inputs import batches
  path = str(root / ("zip.zip" if name == "zip" else name))
  kind: Callable = {"folder": ImageFolder, "zip": ImageZip, "tfrecords": TFRecords}[name]
  source = Augmented(lambda: kind(path, RESOLUTION, memory_limit=0))
  return batches(source, InputContext(FLAGS.batch_size)).as_numpy_iterator()


def batches_of(name: str, root: pathlib.Path) -> Iterator[Any]:
  """The batches of a contender."""
  if name in OURS:
    return ours(name, root)
  sizes = FLAGS.batch_size, RESOLUTION
  if name == "grain":
    return input_peers.grain(root / "folder", *sizes, FLAGS.threads)
  if name == "data_loader":
    return input_peers.data_loader(root / "folder", *sizes, FLAGS.threads)
  shards = root / "tfrecords" if name == "tf_data_shards" else None
  return input_peers.tf_data(root / "folder", shards, *sizes, antialias=name != "tf_data_fast")


def take_turns() -> None:
  """Runs in a contender's process: takes turns on request, or says how much memory it has."""
  from replicator.console.quiet import import_tensorflow
  if FLAGS.contender not in ("grain", "data_loader"):
    import_tensorflow()
  batches = batches_of(FLAGS.contender, pathlib.Path(FLAGS.data))

  if FLAGS.memory:
    for _ in range(1024 // FLAGS.batch_size):
      next(batches)
    print(resident_mib())
  else:
    turns.take(lambda: float(len(next(batches))), FLAGS.batches, BUFFERED)


def memory_of(name: str, root: pathlib.Path) -> float:
  """The highest resident memory of a source in a process of its own, in MiB."""
  done = subprocess.run(
      [sys.executable, "-m", "benchmarks.input_pipeline", *sys.argv[1:], f"--contender={name}",
       f"--data={root}"], check=True, capture_output=True, text=True)
  return float(done.stdout.split()[-1])


def main(argv: list[str]) -> None:
  del argv
  if FLAGS.contender:
    take_turns()
    return
  with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    (root / "large").mkdir()
    make_data(root)
    if FLAGS.memory:
      print(f"{'MiB':12} {'small':>8} {f'x {COPIES}':>8}")
      for name in OURS:
        print(f"{name:12} {memory_of(name, root):8.0f} {memory_of(name, root / 'large'):8.0f}")
      return
    sys.argv.append(f"--data={root}")
    names = turns.installed({**dict.fromkeys(OURS, "tensorflow"), **PEERS})
    turns.compare("benchmarks.input_pipeline", names, FLAGS.rounds, FLAGS.threads,
                  amount=FLAGS.batch_size * FLAGS.batches, unit="images",
                  title=f"JPEG files of 500 px to random-resized crops of {RESOLUTION} px")


if __name__ == "__main__":
  app.run(main)
