"""Shows images before training: one HTML page, with warnings.

    replicator preview DATA [--out=preview.html] [--resolution=R] [--samples=N]
        [--test=DATA] [--gin_param="Augmentation.hue = 0.1"]

DATA is any data that `models.vision.sources.open_encoded` opens. The page shows the counts and some
images of each class, a batch as in training, and the sizes of the images. It warns about skipped
files, images that are unreadable, nearly black or enlarged, mixed sizes, and exact copies,
including those among the images of `--test`.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from models.vision import sources
from models.vision.augmentation.random_view import Augmentation
from models.vision.images.decode import set_pixel_limit
from models.vision.images.encoded_images import DecodedImages, EncodedImages
from models.vision.images.logged import collected
from models.vision.preview import page, survey
from replicator import UsageError
from replicator.app import config
from replicator.atomic import write_whole
from replicator.configuration import operative
from replicator.console.command import Parser, program, status_of
from replicator.console.formatting import format_bar
from replicator.console.status import Status

import numpy as np

_MOST_RESOLUTION = 256  # The maximum resolution of the page by default.


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line `argv` (default: this process's); returns the exit status."""
  return status_of(lambda words: _run(_parse(words), words), argv)


def _parse(words: Sequence[str]) -> argparse.Namespace:
  parser = Parser(description="Shows images before training on them.")
  parser.add_argument("data", metavar="DATA", help=sources.FORMS)
  parser.add_argument("--out", default="preview.html", metavar="FILE", type=Path,
                      help="the page to write; by default preview.html")
  parser.add_argument("--resolution", type=int, metavar="R",
                      help="resolution of the training examples; by default that of the data")
  parser.add_argument("--samples", type=int, metavar="N",
                      help="look at N randomly chosen images; by default at all")
  parser.add_argument("--test", metavar="DATA",
                      help="test images; copies of them in DATA are reported")
  parser.add_argument("--gin_param", action="append", default=[], metavar='"a.b = 1"',
                      help="a setting of DATA, such as HuggingFace.label = 'breed', or of "
                           "Augmentation, which shows on the batch")
  parser.add_argument("--debug", action="store_true", help="show tracebacks")
  flags = parser.parse_args(words)
  for name in ("resolution", "samples"):
    value = getattr(flags, name)
    if value is not None and value < 1:
      raise UsageError(f"--{name}={value}: must be at least 1")
  config.parse([], flags.gin_param)
  Augmentation()  # Raises an error for a wrong value before images are read.
  set_pixel_limit()
  flags.out = flags.out.expanduser()
  if not flags.out.parent.is_dir():
    raise UsageError(f"--out={flags.out}: {flags.out.parent} is not a folder")
  return flags


def _run(flags: argparse.Namespace, words: Sequence[str]) -> int:
  with Status() as status:
    def opened(name: str) -> EncodedImages:
      status.doing(f"listing {name}")
      return sources.open_encoded(name, skips=True)

    def examined(encoded: EncodedImages, most: int | None = None) -> survey.Survey:
      return survey.examine(encoded, most, lambda done, count: status.doing(
          format_bar(f"looking at {encoded.path}", done, count)))

    with collected() as logged:
      encoded = opened(flags.data)
    operative.check_all_used()
    shape = encoded.image_shape
    if (shape and isinstance(encoded, sources.EncodedExamples)
        and flags.resolution not in (None, shape[0])):
      raise UsageError(f"--resolution={flags.resolution}: the images of {flags.data} have "
                       f"{shape[0]} px; leave it out")
    found = examined(encoded, flags.samples)
    resolution = flags.resolution or (
        shape[0] if shape else min(_MOST_RESOLUTION, int(np.median(found.sizes.min(1)))))
    test = examined(opened(flags.test)) if flags.test else None
    concerns = survey.concerns(found, resolution, test, survey.of_log(logged))
    status.doing("drawing the page")
    source = DecodedImages(found.encoded, resolution, "skip", 0, shape[2] if shape else 3)
    augmentation = [each for each in flags.gin_param if each.startswith("Augmentation.")]
    text = page.render(found, concerns, source, augmentation, shlex.join([*program(), *words]))
    try:
      write_whole(flags.out, text)
    except OSError as error:
      raise UsageError(f"--out={flags.out}: cannot be written ({error.strerror})") from error
  print(f"wrote {flags.out}: {len(found.encoded.labels):,} images of {len(found.counts):,} classes")
  for concern in concerns:
    print(f"warning: {concern.text}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
