"""Compares generated images with real ones: FID, KID, precision, recall, inception score, and more.

    replicator evaluate --real=DATA --fake=RUN|FOLDER|FILE.zip|FILE.npz
        [--features=inception|efficientnet|classifier|FILE.pth|FILE.keras]
        [--metrics=fid,kid,prdc,is,swd,intra_fid] [--samples=N] [--resolution=R] [--json=FILE]
        [--out=FOLDER] [--step=N|best] [--seed=S] [--balanced]

DATA is a folder, a .zip, an .npz, shards, tfds:NAME, hf:NAME, MODULE:CLASS of an image source, or a
data set of this project: digits, shapes or stacked_digits. Features and statistics of real images
are cached on disk. `--gin_param` also takes settings of DATA: `HuggingFace.image = 'photo'`.
A conditional run generates classes with the frequencies of the real images or, if these have
different classes or none, of its training data.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from experiments import sample
from models.gan.evaluation import sampling
from models.metrics import cache, comparison, memorization
from models.metrics.extractors.efficientnet import EfficientNetLite0
from models.metrics.extractors.extractor import Extractor
from models.metrics.extractors.inception import Inception2015
from models.metrics.extractors.keras_features import KerasFeatures, SmallClassifier
from models.metrics.images import pair_checks
from models.metrics.images.image_sets import ImageSet, Seen, Source, open_set
from models.vision.builtin.shapes import Shapes
from models.vision.images.image_source import ImageSource
from models.vision.images.logged import collected
from models.vision.sources import FORMS, SETTINGS, is_of_library, named
from replicator import UsageError, atomic
from replicator.app import config, load
from replicator.app.loading_flags import add_loading_flags
from replicator.configuration import operative
from replicator.console.command import Parser, status_of
from replicator.console.status import Status
from replicator.errors import first_line, nearest
from replicator.training.workdir.places import folder_of, is_url, refuse_url

import gin
import numpy as np
import tensorflow as tf
from absl import logging as absl_logging

_FEATURES = ("inception", "efficientnet", "classifier")
_OF_RUNS = ("standing_statistics", "step", "balanced")  # Flags for runs, like --seed.


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line `argv` (default: this process's); returns the exit status."""
  return status_of(lambda words: _run(_parse(words)), argv)


def _parse(words: Sequence[str]) -> argparse.Namespace:
  parser = Parser(description="Compares generated images with real ones.")
  parser.add_argument("--real", required=True, metavar="DATA",
                      help=FORMS)
  parser.add_argument("--fake", required=True, metavar="RUN",
                      help="the workdir of a run, or a folder, .zip or .npz of generated images")
  parser.add_argument("--features", default="inception", metavar="NAME",
                      help=f"{', '.join(_FEATURES)} (of the named data, or of the run), a .pth "
                           "file of Inception weights, or a .keras model; by default inception")
  parser.add_argument("--metrics", default="fid,kid,prdc", metavar="fid,kid",
                      type=lambda text: text.split(","),
                      help=f"some of {','.join(comparison.NEEDS)}; by default fid,kid,prdc")
  parser.add_argument("--samples", type=int, metavar="N",
                      help="how many real and generated images; by default all, and for a run as "
                           "many as there are real ones")
  parser.add_argument("--resolution", type=int, metavar="R",
                      help="resize the center squares of images in files to R x R pixels")
  parser.add_argument("--json", type=pathlib.Path, metavar="FILE",
                      help="a new file for the numbers")
  parser.add_argument("--out", type=pathlib.Path, metavar="FOLDER",
                      help="a new folder for the numbers and for pictures of nearest neighbors")
  parser.add_argument("--cache", type=pathlib.Path, metavar="FOLDER",
                      default="~/.cache/replicator", help="where features of real images are kept")
  parser.add_argument("--seed", type=int, metavar="S",
                      help="of a run: chooses the latents; by default 0")
  sample.add_generating_flags(parser)
  add_loading_flags(parser)
  flags = parser.parse_args(words)
  _check(flags)
  return flags


def _check(flags: argparse.Namespace) -> None:
  """Raises a UsageError for flags that are wrong regardless of the images."""
  comparison.needs(flags.metrics)
  flags.cache = flags.cache.expanduser()
  for name in ("json", "out"):
    if path := getattr(flags, name):
      setattr(flags, name, sample.new_path(path, f"--{name}"))
  for name in ("samples", "resolution"):
    value = getattr(flags, name)
    if value is not None and value < 1:
      raise UsageError(f"--{name}={value}: must be at least 1")
  if not _is_run(flags.fake) and pathlib.Path(flags.fake).expanduser().exists():
    given = [name for name in _OF_RUNS if getattr(flags, name) is not None]
    if others := [each for each in flags.gin_param if not _is_of_data(each)]:
      raise UsageError(f'--gin_param="{others[0]}": is a setting of a run, but {flags.fake} holds '
                       "images; leave it out")
    if given or flags.seed is not None:
      raise UsageError(f"--{(given or ['seed'])[0]}: is for a run in --fake, but {flags.fake} "
                       "holds images; leave it out")
  flags.seed = flags.seed or 0
  if not 0 <= flags.seed < 2 ** 32:
    raise UsageError(f"--seed={flags.seed}: must be from 0 to 2 ** 32 - 1")
  if not is_of_library(flags.real):
    refuse_url(flags.real, "--real", "copy the images here")
  if _is_run(flags.real):
    raise UsageError(f"--real={flags.real}: is a run, whose images are generated; pass it as "
                     "--fake, and data as --real")
  if named(flags.fake):
    raise UsageError(f"--fake={flags.fake}: is real data; pass it as --real, and a run or its "
                     "samples as --fake")


def _is_of_data(binding: str) -> bool:
  """Returns whether a binding is a setting of data, such as `HuggingFace.label = 'breed'`."""
  return binding.partition(".")[0].strip() in SETTINGS


def _is_run(path: str) -> bool:
  if is_of_library(path):
    return False
  return is_url(path) or (pathlib.Path(path).expanduser() / "run.json").exists()


# ---- What is compared ---------------------------------------------------------------------------


def _real(flags: argparse.Namespace) -> tuple[ImageSet, ImageSource | None]:
  """Returns the real images, and their source if they have a name."""
  if of_data := list(filter(_is_of_data, flags.gin_param)):
    config.parse([], of_data)
  make = named(flags.real)
  if make is None:
    return open_set(flags.real, flags.resolution), None
  is_resized = flags.real == "shapes" and flags.resolution
  source = Shapes(flags.resolution) if is_resized else make()
  return Source(flags.real, source), source


def _fake(flags: argparse.Namespace, real: ImageSet, size: int, status: Status
          ) -> tuple[ImageSet, int | None, str]:
  """Returns the generated images, the step of their run, and a description of their labels."""
  if not _is_run(flags.fake):
    found = open_set(flags.fake, flags.resolution)
    if flags.gin_param:
      operative.check_all_used()
    return found, None, ""
  if any(map(_is_of_data, flags.gin_param)):
    gin.clear_config()  # The run's settings replace them.
  load.check_program(flags.fake, flags.yes)
  status.doing("loading the run")
  run, number = load.load_run(flags.fake, flags.step, flags.gin_param, flags.yes)
  gan = run.module
  sampling.check(gan)
  if flags.standing_statistics:
    sampling.set_standing_statistics(gan, flags.standing_statistics)
  classes, labels = sample.classes_of(run, flags.fake), ""
  if classes:
    of_real = classes.with_counts_of(real.classes)
    labels = f"labels in the proportions of {flags.real if of_real else 'the data of the run'}"
    classes = of_real or classes
  if flags.balanced and classes:
    classes, labels = classes.balanced, "labels in equal proportions"
  return sampling.SampleSet(flags.fake, gan, size, flags.seed, classes), number, labels


def _extractor(flags: argparse.Namespace, source: ImageSource | None) -> Extractor:
  name = flags.features
  if name == "inception":
    try:
      return Inception2015()
    except UsageError as error:
      reason = first_line(error)  # gin appends lines to it.
    raise UsageError(f"{reason}, or use --features=PATH, or --features=efficientnet, which needs "
                     "no network access")
  if name == "efficientnet":
    return EfficientNetLite0()
  if name == "classifier":
    if source is not None:
      return SmallClassifier(source, flags.cache / f"classifier-{flags.real}")
    of_run = folder_of(flags.fake) / "classifier" if _is_run(flags.fake) else None
    if of_run is None or not of_run.exists():
      raise UsageError(f"--features=classifier: needs data with a name, such as --real=digits, or "
                       f"a run in --fake that trained a classifier on its own data; for "
                       f"{flags.real} use --features=efficientnet")
    return SmallClassifier(None, of_run)
  path = pathlib.Path(name).expanduser()
  if path.suffix not in (".pth", ".keras"):
    raise UsageError(f"--features={name}: use {', '.join(_FEATURES)}, or a .pth or .keras file."
                     f"{nearest(name, _FEATURES)}")
  if not path.is_file():
    raise UsageError(f"--features={name}: no such file")
  if path.suffix == ".pth":
    return Inception2015(str(path))
  digest = hashlib.sha256(path.read_bytes()).hexdigest()
  return KerasFeatures(str(path), f"{path.stem} {digest[:8]}")


# ---- The run ------------------------------------------------------------------------------------


def _run(flags: argparse.Namespace) -> int:
  tf.config.experimental.enable_op_determinism()  # For the same images each time.
  tf.config.experimental.enable_tensor_float_32_execution(False)  # To match published features.
  with contextlib.ExitStack() as stack:
    logged = stack.enter_context(collected())
    status = stack.enter_context(Status())
    folder = stack.enter_context(atomic.created(flags.out)) if flags.out else None
    if folder:
      folder.mkdir()
    report = _evaluate(flags, folder, status)
    report["warnings"] = warnings = [record.getMessage() for record in logged]
    written = json.dumps(report, indent=1) + "\n"
    if folder:
      (folder / "metrics.json").write_text(written)
    if flags.json:
      flags.json.parent.mkdir(parents=True, exist_ok=True)
      atomic.write_whole(flags.json, written)
  print(comparison.table(report))
  for line in warnings:
    print(f"warning: {line}", file=sys.stderr)
  return 0


def _evaluate(flags: argparse.Namespace, folder: pathlib.Path | None,
              status: Status) -> dict[str, Any]:
  """Returns the results, ready for JSON; writes pictures to the folder."""
  needed = comparison.needs(flags.metrics) | ({"features"} if folder else set())
  status.doing("opening the images")
  real, source = _real(flags)
  of_real = pair_checks.chosen(real, flags.samples, "--real")
  status.doing("loading the features")
  extractor = None if needed == {"images"} else _extractor(flags, source)
  fake, number, shares = _fake(flags, real, len(of_real), status)
  of_fake = pair_checks.chosen(fake, flags.samples, "--fake")
  comparison.check_counts(flags.metrics, len(of_real), len(of_fake))
  pair_checks.check_sizes(real, fake)
  labels = (pair_checks.classes(real, of_real, fake, of_fake) if "intra_fid" in flags.metrics
            else (np.empty(0), np.empty(0)))
  gathered, seen = cache.gather_real(
      real, of_real, extractor, needed, flags.cache,
      lambda what, batches: sample.shown(what, batches, len(of_real), status))
  seen_fake = Seen()
  generated = comparison.gather(
      seen_fake(sample.shown("features of generated images", fake.batches(of_fake), len(of_fake),
                             status)), extractor, needed)
  gathered.labels, generated.labels = labels
  for line in pair_checks.warnings(real, fake, seen, seen_fake):
    absl_logging.warning("%s", line)
  status.doing("computing the metrics")
  rows = comparison.compare(gathered, generated, extractor, flags.metrics)
  report = {"real": flags.real, "fake": flags.fake, "step": number,
            "resizing_of_files": {"real": real.resizing, "fake": fake.resizing},
            "resolution": list(map(int, real.resolution)), "seed": flags.seed,
            "standing_statistics": flags.standing_statistics, "labels": shares,
            "rows": [dataclasses.asdict(row) for row in rows]}
  if folder:
    status.doing("drawing nearest neighbors")
    distances = memorization.measure(gathered, generated)
    memorization.write(folder, distances, real, of_real, fake, of_fake)
    report["median_distance_to_nearest_real"] = distances.medians()
  return report


if __name__ == "__main__":
  sys.exit(main())
