"""Speed and memory of decoding and augmenting images, for the image sources and for peers.

  pip install -e '.[tfds,huggingface]' grain torch torchvision
  python -m benchmarks.input_pipeline [--images=1000,100000]

JPEG files of 500 x 375 pixels become random-resized crops of 224 pixels, half of them mirrored:

  tfrecords, folder, zip, tfds, hugging_face  `Augmented` around each source: random access
  arrays                   the same for center squares, already decoded, in NumPy files
  tf_data                  plain tf.data over the shards, reading records in sequence
  tf_data_fast             the same, decoded less exactly and resized without antialiasing
  grain, data_loader       Grain, and PyTorch's DataLoader, with 2 worker processes

Contenders whose package is not installed are skipped. Each runs in its own process, and they take
turns. Each turn starts with uncounted batches, more than could have been prefetched. The table has
medians over the turns, and ratios of these medians.

A second table has the peak resident memory, in separate processes, for the first number of
`--images` and for multiples of it, whose contents repeat. It includes mapped files and worker
processes.
"""

import contextlib
import functools
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import input_data, input_peers, turns
from benchmarks.record import Table

from absl import app, flags, logging

FLAGS = flags.FLAGS
RESOLUTION = 224
_PACKAGES = {"tfrecords": "tensorflow", "folder": "tensorflow", "zip": "tensorflow",
             "arrays": "tensorflow", "tfds": "tensorflow_datasets", "hugging_face": "datasets",
             "tf_data": "tensorflow", "tf_data_fast": "tensorflow", "grain": "grain",
             "data_loader": "torchvision"}
_READY = 10  # Batches; more than any contender prefetches.
flags.DEFINE_list("images", ["1000", "100000"],
                  "Numbers of images; the others are multiples of the first.")
flags.DEFINE_integer("rounds", 7, "Turns of every contender.", lower_bound=0)
flags.DEFINE_integer("batches", 40, "Batches of one turn that count.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Images of a batch.", lower_bound=1)
flags.DEFINE_integer("workers", 2, "Worker processes of Grain and of PyTorch.", lower_bound=1)
flags.DEFINE_list("of", None, "Which contenders take part; all that are installed if not given.")
flags.DEFINE_string("data", None, "Where the data is; set by the benchmark.")
flags.DEFINE_enum("contender", None, list(_PACKAGES), "Only take turns as this one, on request.")


def source(name: str, root: pathlib.Path) -> Any:
  """Returns one of this project's sources, which decodes images as they are drawn."""
  from models.vision import sources
  made: dict[str, Callable] = {
      "tfrecords": sources.TFRecords, "folder": sources.ImageFolder, "zip": sources.ImageZip,
      "hugging_face": sources.HuggingFace,
      "tfds": functools.partial(sources.TFDS, "photos", data_dir=str(root / "tfds"))}
  if name == "arrays":
    return sources.ImageArrays(str(root / name))
  place = () if name == "tfds" else (str(root / ("zip.zip" if name == "zip" else name)),)
  return made[name](*place, resolution=RESOLUTION, memory_limit=0)


def batches_of(name: str, root: pathlib.Path) -> Iterator[Any]:
  """Returns an endless iterator over a contender's batches."""
  sizes = FLAGS.batch_size, RESOLUTION
  if name in ("grain", "data_loader"):
    return getattr(input_peers, name)(root / "folder", *sizes, FLAGS.workers)
  if name in ("tf_data", "tf_data_fast"):
    return input_peers.tf_data(root / "tfrecords", *sizes, fast=name == "tf_data_fast")
  from models.vision.augmentation.random_view import Augmented
  from replicator import InputContext
  from replicator.training.inputs.pipeline import pipeline
  return pipeline(Augmented(lambda: source(name, root)), InputContext(FLAGS.batch_size)
                 ).as_numpy_iterator()


def take_turns() -> None:
  """Runs in a contender's process: takes turns on request."""
  logging.set_verbosity(logging.WARNING)
  batches = batches_of(FLAGS.contender, pathlib.Path(FLAGS.data))
  turns.take(lambda: float(len(next(batches))), FLAGS.batches, untimed=_READY)


def compare_memory(names: list[str], root: pathlib.Path, counts: list[int]) -> None:
  """Prints each contender's memory for each number of images."""
  table = Table("MiB for a number of images", {f"{count:,}": ",.0f" for count in counts})
  for name in names:
    found = []
    for count in counts:
      with contextlib.closing(turns.Contender("benchmarks.input_pipeline", name, FLAGS.workers,
                                              [f"--data={root / str(count)}"])) as contender:
        contender.turn()
        found.append(contender.mib)
    table.add(name, *found)


def main(argv: list[str]) -> None:
  del argv
  if FLAGS.contender:
    take_turns()
    return
  names = turns.installed({name: _PACKAGES[name] for name in FLAGS.of or _PACKAGES})
  counts = [int(count) for count in FLAGS.images]
  with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    first = root / str(counts[0])
    input_data.make_photos(first / "folder", counts[0])
    input_data.make_sources(first, names, RESOLUTION)
    size = sum(file.stat().st_size for file in (first / "folder").glob("*/*"))
    print(f"{counts[0]:,} JPEG files of {' x '.join(map(str, input_data.SIZE))} px, quality "
          f"{input_data.QUALITY}, {size / counts[0] / 1000:.0f} kB each", flush=True)
    if FLAGS.rounds:
      turns.compare("benchmarks.input_pipeline", names, FLAGS.rounds, FLAGS.workers,
                    amount=FLAGS.batch_size * FLAGS.batches, unit="images",
                    title=f"Random-resized crops of {RESOLUTION} px, batch {FLAGS.batch_size}",
                    flags=[f"--data={first}"])
    for count in counts[1:]:
      input_data.repeat(first, root / str(count), count // counts[0])
    compare_memory([name for name in names if name not in ("tfds", "hugging_face")], root, counts)


if __name__ == "__main__":
  app.run(main)
