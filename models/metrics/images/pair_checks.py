"""Checks of two sets of images before and after they are compared, in words for a command line."""

from collections.abc import Iterator

from models.metrics.images.image_sets import ImageSet, Seen
from replicator import UsageError

import numpy as np

_CHOICE_SEED = 1  # Chooses images where not all are used.


def chosen(images: ImageSet, count: int | None, flag: str) -> np.ndarray:
  """The numbers of `count` images drawn at random, ascending, int [count]; of all for None.

  Raises:
    UsageError: there are fewer; `flag` is the one that named the images.
  """
  count = count or images.size
  if count > images.size:
    raise UsageError(f"--samples={count}: {flag}={images.name} has {images.size:,} images; write "
                     "at most that many")
  if count == images.size:
    return np.arange(count)
  return np.sort(np.random.default_rng(_CHOICE_SEED).permutation(images.size)[:count])


def check_sizes(real: ImageSet, fake: ImageSet) -> None:
  """Raises a UsageError if the images of two sets have different heights or widths."""
  if tuple(real.resolution) != tuple(fake.resolution):
    sizes = ["x".join(map(str, images.resolution)) for images in (real, fake)]
    raise UsageError(f"--real={real.name}: has images of {sizes[0]} pixels, and --fake={fake.name} "
                     f"of {sizes[1]}; write --resolution={min(*real.resolution, *fake.resolution)} "
                     "to resize those in files, or bring both to one size")


def classes(real: ImageSet, of_real: np.ndarray, fake: ImageSet, of_fake: np.ndarray
            ) -> tuple[np.ndarray, np.ndarray]:
  """The classes of the images at the indices [n] and [m] of two sets, int [n] and [m].

  Raises:
    UsageError: a set has no classes, or the sets have other ones.
  """
  found = []
  for images, indices, flag in ((real, of_real, "--real"), (fake, of_fake, "--fake")):
    labels = images.labels(indices)
    if labels is None:
      raise UsageError(f"metric 'intra_fid': {flag}={images.name} has no classes; put the images "
                       "of each class into a folder of their own, save 'labels' beside an array, "
                       "or leave 'intra_fid' out")
    found.append(labels)
  names = real.class_names, fake.class_names
  # Labels of classes that are called 0, 1, 2, ... mean the same in any set.
  if all(names) and names[0] != names[1] and not all(
      each == tuple(map(str, range(len(each)))) for each in names):
    listed = [", ".join(each[:4]) for each in names]
    raise UsageError(f"metric 'intra_fid': --real={real.name} has the classes {listed[0]}, and "
                     f"--fake={fake.name} {listed[1]}; give the folders of both the same names")
  return found[0], found[1]


def warnings(real: ImageSet, fake: ImageSet, of_real: Seen, of_fake: Seen) -> Iterator[str]:
  """Lines about differences that make numbers mean something else than they seem to."""
  if of_real.sha256 == of_fake.sha256:
    yield "the generated images are the real ones: the distances are those of equal images"
  if of_real.count != of_fake.count:
    yield (f"{of_real.count:,} real and {of_fake.count:,} generated images: most metrics depend on "
           f"both counts; --samples={min(of_real.count, of_fake.count)} takes as many of each")
  if of_real.is_gray != of_fake.is_gray:
    gray, color = ("real", "generated") if of_real.is_gray else ("generated", "real")
    yield f"all {gray} images are gray, and the {color} ones have colors"
  if real.formats and fake.formats and real.formats != fake.formats:
    names = [" and ".join(sorted(images.formats)) for images in (real, fake)]
    yield (f"the real files are {names[0]}, and the generated ones {names[1]}: the metrics see the "
           "traces of JPEG; save both as PNG, from originals")
  if real.resizing != fake.resizing:
    yield (f"resizing of the real images: {real.resizing}; of the generated ones: {fake.resizing}. "
           "The metrics see the difference")
