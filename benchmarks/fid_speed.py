"""Speed of FID compared with torch-fidelity, from PNG files to the number.

  pip install torch torch-fidelity
  python -m benchmarks.fid_speed [--count=10000] [--images=FOLDER --size=32]

Both read the same two folders and one file of random Inception weights, as `benchmarks.png_parity`
does. Each runs in its own process. They take turns of `--block` images, so that other work on the
machine slows both, and a last turn from all features to the FID. The first batches, which trace and
load, do not count.
"""

import contextlib
import glob
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterator

from benchmarks import feature_parity, turns
from benchmarks.png_parity import write_images
from benchmarks.record import Table
from benchmarks.usage import require

import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("images", None, "A folder of images; by default two photographs.")
flags.DEFINE_integer("count", 10_000, "Real images, and as many in the place of generated ones.", 8)
flags.DEFINE_integer("size", 64, "Height and width of the PNG files.", 8)
flags.DEFINE_integer("block", 250, "Images of a turn.", 1)
flags.DEFINE_string("folder", None, "Where the files are (set by the benchmark).")
turns.define_flags(["ours", "torch_fidelity"])

_WARM_UP = 8  # Images.


def blocks() -> list[np.ndarray]:
  """Returns the indices of each turn's images, for one of the folders."""
  return [np.arange(first, min(first + FLAGS.block, FLAGS.count))
          for first in range(0, FLAGS.count, FLAGS.block)]


def ours() -> Iterator[float]:
  """Runs like `replicator evaluate`: streams statistics, and keeps no features."""
  from models.metrics.comparison import gather
  from models.metrics.distances.frechet import frechet_distance
  from models.metrics.extractors.inception import Inception2015
  from models.metrics.images.image_sets import open_set
  extractor = Inception2015(f"{FLAGS.folder}/weights.pth")
  real, generated = (open_set(f"{FLAGS.folder}/{name}") for name in ("real", "generated"))

  def statistics(images, block):
    return gather(images.batches(block), extractor, {"statistics"}).statistics

  yield from (statistics(real, np.arange(_WARM_UP)).count for _ in range(2))
  found = []
  for images in (real, generated):
    total = None
    for block in blocks():
      part = statistics(images, block)
      total = part if total is None else total + part
      yield 0.0
    found.append(total)
  yield frechet_distance(*found)


def torch_fidelity() -> Iterator[float]:
  """Calls the functions behind its `calculate_metrics`, with its default batches of 64."""
  import torch
  from torch_fidelity import metric_fid, utils
  from torch_fidelity.datasets import ImagesPathDataset
  extractor = utils.create_feature_extractor(
      "inception-v3-compat", ["2048"], cuda=False, verbose=False, feature_extractor_compile=False,
      feature_extractor_weights_path=f"{FLAGS.folder}/weights.pth")

  def features(files):
    # Reads in this process: starting readers for each turn would take longer.
    return utils.get_featuresdict_from_dataset(
        ImagesPathDataset(files), extractor, 64, cuda=False, save_cpu_ram=True,
        verbose=False)["2048"]

  real, generated = (sorted(glob.glob(f"{FLAGS.folder}/{name}/*.png"))
                     for name in ("real", "generated"))
  yield from (len(features(real[:_WARM_UP])) for _ in range(2))
  found = []
  for files in (real, generated):
    parts = []
    for block in blocks():
      parts.append(features([files[i] for i in block]))
      yield 0.0
    found.append(torch.cat(parts))
  statistics = (metric_fid.fid_features_to_statistics(part) for part in found)
  yield metric_fid.fid_statistics_to_metric(*statistics, False)["frechet_inception_distance"]


CONTENDERS: dict[str, Callable[[], Iterator[float]]] = {
    "ours": ours, "torch_fidelity": torch_fidelity}


def compare(folder: str) -> None:
  """Runs both in turns; prints the time and the result of each."""
  num_turns = 2 * len(blocks()) + 1
  with contextlib.ExitStack() as running:
    contenders = [running.enter_context(contextlib.closing(turns.Contender(
        "benchmarks.fid_speed", name, FLAGS.threads, [f"--folder={folder}"])))
        for name in CONTENDERS]
    for number in range(1, num_turns + 1):
      for contender in contenders:
        contender.seconds.append(contender.turn())
      print(f"turn {number} of {num_turns}", file=sys.stderr, flush=True)
  parts = {"features": slice(-1), "distance": slice(-1, None), "together": slice(None)}
  table = Table(f"FID of {FLAGS.count:,} and {FLAGS.count:,} images {FLAGS.size}x{FLAGS.size}, "
                f"{FLAGS.threads} threads each; seconds, and those of the CPU",
                {f"{name}{kind}": ".1f" for name in parts for kind in ("", ", CPU")}
                | {"time, first = 1": ".2f", "FID": ".8g"})
  for contender in contenders:
    times = [sum(each[part]) for part in parts.values()
             for each in (contender.seconds, contender.cpu)]
    table.add(contender.name, *times, sum(contender.seconds) / sum(contenders[0].seconds),
              contender.found)


def main(argv: list[str]) -> None:
  del argv
  if FLAGS.contender:
    turns.set_threads()
    turns.take(CONTENDERS[FLAGS.contender]().__next__, 1)
    return
  require("torch", "torch-fidelity")
  from models.metrics.extractors import inception
  with tempfile.TemporaryDirectory() as name:
    write_images(FLAGS.images, FLAGS.count, FLAGS.size, pathlib.Path(name))
    path = feature_parity.write(inception.build(), inception.norm_of, name, zipped=True)
    pathlib.Path(path).rename(f"{name}/weights.pth")
    compare(name)


if __name__ == "__main__":
  app.run(main)
