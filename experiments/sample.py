"""Samples the generator of a run: a grid, a data set, an interpolation, or reconstructions.

    replicator sample --run=RUN --out=grid.png|FOLDER|FILE.zip
        [--step=N|best] [--classes=cat,dog] [--balanced] [--truncation=0.5] [--seed=S] [--count=N]
    replicator sample --run=RUN --out=walk.png|walk.webp --interpolate
        [--seed=1,2,...] [--classes=cat,dog,...] [--count=N]
    replicator sample --run=RUN --out=pairs.png --reconstruct=DATA [--classes=C]

The run may be of any experiment whose step `models.gan.evaluation.sampling` can call. The same
seed gives the same image at the same position, for any count. Without `--classes`, a grid
cycles through the classes, and a data set has the class frequencies of the training data.
"""

import argparse
import csv
import math
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from models.gan.evaluation import sampling
from models.metrics.images import image_sets
from models.vision.images import grid, write
from models.vision.images.classes import Classes
from models.vision.images.decode import as_array, as_image
from replicator import UsageError
from replicator.app import load
from replicator.app.loading_flags import add_loading_flags
from replicator.console.command import Parser, status_of
from replicator.console.formatting import format_bar
from replicator.console.status import Status
from replicator.tools import rerun
from replicator.training.run import Run
from replicator.training.workdir.places import folder_of, refuse_url

import numpy as np
import tensorflow as tf

_WIDEST_CLASSES = 16     # With at most this many classes, each gets a column.
_ROWS = 8
_KINDS = {"samples": (".png", ".zip", ""), "interpolate": (".png", ".webp"),
          "reconstruct": (".png",)}
_FRAMES = {".png": 8, ".webp": 30}  # From one latent, or class, to the next.


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line `argv` (default: this process's); returns the exit status."""
  return status_of(lambda words: _run(_parse(words)), argv)


def _parse(words: Sequence[str]) -> argparse.Namespace:
  parser = Parser(description="Samples the generator of a run.")
  parser.add_argument("--run", required=True, metavar="RUN", help="the workdir of the run")
  parser.add_argument("--out", required=True, type=pathlib.Path, metavar="FILE",
                      help="a new .png, .webp or .zip, or a new folder of PNG files")
  parser.add_argument("--classes", type=_words, default=[], metavar="cat,dog",
                      help="the classes of the images, in turn, by name or number; by default all")
  parser.add_argument("--truncation", type=float, metavar="T",
                      help="below 1, samples are better but less diverse")
  parser.add_argument("--seed", type=_numbers, metavar="S",
                      help="chooses the latents; by default 0. --interpolate takes several")
  parser.add_argument("--count", type=int, metavar="N", help="how many images")
  modes = parser.add_mutually_exclusive_group()
  modes.add_argument("--interpolate", action="store_true",
                     help="walk between the seeds, or between the classes")
  modes.add_argument("--reconstruct", metavar="DATA",
                     help="pairs of images and their reconstructions, from a folder, a .zip, ...")
  add_generating_flags(parser)
  add_loading_flags(parser)
  flags = parser.parse_args(words)
  _check(flags)
  return flags


def add_generating_flags(parser: Parser) -> None:
  """Adds the flags of a command that generates images, except those for latents."""
  parser.add_argument("--balanced", action="store_true", default=None,
                      help="generate all classes equally often, not in the data's proportions")
  parser.add_argument("--standing_statistics", type=_passes, metavar="N",
                      help="generate with batch statistics of N passes, not moving averages")


def _passes(text: str) -> int:
  """Parses the value of `--standing_statistics`."""
  if not text.isdigit() or not int(text):
    raise argparse.ArgumentTypeError(f"'{text}': must be a number of passes, such as 16")
  return int(text)


def _words(text: str) -> list[str]:
  """Parses `--classes`: comma-separated names; a name with a comma is quoted."""
  return [word.strip() for word in next(csv.reader([text], skipinitialspace=True), [])]


def _numbers(text: str) -> list[int]:
  words = text.split(",")
  if not all(word.strip().isdigit() for word in words):
    raise argparse.ArgumentTypeError(f"'{text}': must be whole numbers, such as 3 or 3,7")
  return [int(word) for word in words]


def _check(flags: argparse.Namespace) -> None:
  """Raises a UsageError for flags that are wrong for any run."""
  kind = ("interpolate" if flags.interpolate else "reconstruct" if flags.reconstruct
          else "samples")
  if flags.out.suffix not in _KINDS[kind]:
    names = " or ".join(f"a {suffix} file" if suffix else "a folder, without a dot in its name"
                        for suffix in _KINDS[kind])
    also = "" if kind == "samples" else f" with --{kind}"
    raise UsageError(f"--out={flags.out}: must be {names}{also}")
  flags.out = new_path(flags.out)
  if flags.truncation is not None and not 0 < flags.truncation < math.inf:
    raise UsageError(f"--truncation={flags.truncation:g}: must be above 0, such as 0.5")
  lowest = 2 if flags.interpolate else 1
  if flags.count is not None and flags.count < lowest:
    raise UsageError(f"--count={flags.count}: must be at least {lowest}")
  if flags.seed and max(flags.seed) >= 2 ** 32:
    raise UsageError(f"--seed={max(flags.seed)}: must be below 2 ** 32")
  if flags.balanced and (flags.classes or flags.out.suffix not in (".zip", "")):
    raise UsageError("--balanced: is for a data set of all classes; leave it out" + (
        ", or --classes" if flags.classes else ", since a picture cycles through the classes"))
  if flags.reconstruct and (flags.seed or flags.truncation):
    raise UsageError("--reconstruct: does not draw latents; leave out --seed and --truncation")
  flags.seed = flags.seed or [0]
  if len(flags.seed) > 1 and not flags.interpolate:
    raise UsageError("--seed: only --interpolate takes several; give one")
  if flags.interpolate and len(flags.seed) < 2 and len(flags.classes) < 2:
    raise UsageError("--interpolate: needs two seeds or classes: --seed=1,2 or --classes=3,7")


def new_path(path: pathlib.Path, flag: str = "--out") -> pathlib.Path:
  """Returns the path given by a flag; raises a UsageError if it exists."""
  refuse_url(path, flag, "use a local path")
  path = path.expanduser()
  if path.exists():
    raise UsageError(f"{flag}={path}: exists; choose another name, or remove it")
  return path


def _run(flags: argparse.Namespace) -> int:
  load.check_program(flags.run, flags.yes)
  tf.config.experimental.enable_op_determinism()  # For the same images each time.
  with Status() as status:
    status.doing("loading the run")
    run, number = load.load_run(flags.run, flags.step, flags.gin_param, flags.yes)
    gan = run.module
    sampling.check(gan)
    classes = classes_of(run, flags.run)
    flags.classes = _labels(classes, flags.classes, status)
    if flags.standing_statistics:
      sampling.set_standing_statistics(gan, flags.standing_statistics, flags.truncation)
    status.doing("sampling")
    if flags.interpolate:
      written = _interpolate(gan, flags)
    elif flags.reconstruct:
      written = _reconstruct(gan, flags)
    else:
      written = _sample(gan, classes, flags, status)
  print(f"{flags.out}: {written} of {flags.run}, step {number}")
  return 0


def classes_of(run: Run, workdir: str) -> Classes:
  """Returns the classes of a run's GAN; see `sampling.classes_of_run`."""
  return sampling.classes_of_run(run, rerun.read_facts(folder_of(workdir), load.REMEDY))


def _labels(classes: Classes, words: list[str], status: Status) -> list[int]:
  """Returns the labels of the named classes; warns of those without training images."""
  if words and not classes:
    raise UsageError(f"--classes={','.join(words)}: the GAN was trained without classes; leave "
                     "them out")
  labels = classes.labels(words)
  if unseen := [classes.names[label] for label in labels if not classes.counts[label]]:
    status.note(f"warning: training had no images of the class {', '.join(unseen)}")
  return labels


def _sample(gan: Any, classes: Classes, flags: argparse.Namespace, status: Status) -> str:
  is_picture, wanted = flags.out.suffix == ".png", classes
  if is_picture or flags.balanced:
    wanted = classes.balanced
  width = len(flags.classes) or sum(wanted.counts)
  columns = width if is_picture and 1 < width <= _WIDEST_CLASSES else _ROWS
  count = flags.count or _ROWS * columns
  batches = shown("sampling", sampling.sample(
      gan, count, flags.seed[0], flags.classes or wanted, flags.truncation), count, status,
      lambda batch: len(batch[0]))
  if is_picture:
    images = np.concatenate([images for images, _ in batches])
    write.write_picture(flags.out, grid.image_grid(images, columns))
    return f"{count:,} samples"
  labeled = ((images, labels if classes else None) for images, labels in batches)
  write_images = write.write_zip if flags.out.suffix else write.write_folder
  write_images(flags.out, labeled, classes.names)
  shares = "equal proportions" if flags.balanced else "the proportions of the data"
  return f"{count:,} samples" + f", classes in {shares}," * bool(classes and not flags.classes)


def shown(what: str, batches: Iterable, count: int, status: Status,
          size: Callable[[Any], int] = len) -> Iterator:
  """Yields the batches, and shows the progress toward `count` images in the status."""
  done = 0
  status.doing(format_bar(what, done, count))
  for batch in batches:
    yield batch
    done += size(batch)
    status.doing(format_bar(what, done, count))


def _interpolate(gan: Any, flags: argparse.Namespace) -> str:
  legs = max(len(flags.seed), len(flags.classes)) - 1
  count = flags.count or legs * _FRAMES[flags.out.suffix] + 1
  images = sampling.interpolate(gan, count, flags.seed, flags.classes, flags.truncation)
  if flags.out.suffix == ".png":
    write.write_picture(flags.out, grid.image_grid(images, count))
  else:
    pictures = [grid.image_grid(image[None], 1) for image in images]
    write.write_animation(flags.out, pictures)
  return f"an interpolation in {count} images"


def _reconstruct(gan: Any, flags: argparse.Namespace) -> str:
  resolution, _, channels = sampling.image_shape(gan)
  found = image_sets.open_set(flags.reconstruct, resolution)
  count = min(flags.count or _ROWS * _ROWS // 2, found.size)
  images = image_sets.pick(found, np.arange(count))
  if channels == 1:
    images = np.stack([as_array(as_image(image).convert("L")) for image in images])
  decoded = sampling.reconstruct(gan, images, flags.classes)
  write.write_picture(flags.out, grid.paired_grid(images, decoded, _ROWS // 2))
  return f"reconstructions of {count} of the {found.size} images in {flags.reconstruct}"


if __name__ == "__main__":
  sys.exit(main())
