"""Checks of two sets of images before and after they are compared, with command-line messages."""
from collections.abc import Iterator

from models.metrics.images.image_sets import ImageSet, Seen
from models.vision.images.classes import SHOWN, Classes
from replicator import UsageError
from replicator.console.formatting import listed

import numpy as np

_CHOICE_SEED = 1  # Chooses images if not all are used.
_LEAST_SHARE = 0.05  # The smallest difference in class frequencies that causes a warning.


def chosen(images: ImageSet, count: int | None, flag: str) -> np.ndarray:
  """Draws `count` images at random; returns ascending indices, int [count], or all for None.

  Raises:
    UsageError: there are fewer; `flag` is the images' flag, for the message.
  """
  count = count or images.size
  if count > images.size:
    raise UsageError(f"--samples={count}: {flag}={images.name} has {images.size:,} images; use "
                     "at most that many")
  if count == images.size:
    return np.arange(count)
  return np.sort(np.random.default_rng(_CHOICE_SEED).permutation(images.size)[:count])


def check_sizes(real: ImageSet, fake: ImageSet) -> None:
  """Raises a UsageError if the images of two sets have different heights or widths."""
  if tuple(real.resolution) != tuple(fake.resolution):
    sizes = ["x".join(map(str, images.resolution)) for images in (real, fake)]
    raise UsageError(f"--real={real.name}: has images of {sizes[0]} pixels, and --fake={fake.name} "
                     f"of {sizes[1]}; use --resolution={min(*real.resolution, *fake.resolution)} "
                     "to resize those in files, or make both the same size")


def classes(real: ImageSet, of_real: np.ndarray, fake: ImageSet, of_fake: np.ndarray
            ) -> tuple[np.ndarray, np.ndarray]:
  """Returns class names of the images at the indices [n] and [m] of two sets, [n] and [m].

  They are spelled as in the real set, even if the generated set writes numbers differently.

  Raises:
    UsageError: a set has no classes, or a generated image has a class without real images.
  """
  found = []
  for images, indices, flag in ((real, of_real, "--real"), (fake, of_fake, "--fake")):
    labels = images.labels(indices)
    if labels is None:
      raise UsageError(f"metric 'intra_fid': {flag}={images.name} has no classes; " + (
          images.unlabeled or "put the images of each class in a separate folder, save 'labels' "
          "next to the array, or leave 'intra_fid' out"))
    found.append(labels)
  places = fake.classes.labels_in(real.classes)[found[1]]
  if places.min() < 0:
    real_names, fake_names = (listed(each.classes.names, SHOWN) for each in (real, fake))
    raise UsageError(
        f"metric 'intra_fid': --real={real.name} has the classes {real_names}, and --fake="
        f"{fake.name} {fake_names}; {fake.naming}")
  names = np.array(real.classes.names)
  return names[found[0]], names[places]


def warnings(real: ImageSet, fake: ImageSet, of_real: Seen, of_fake: Seen) -> Iterator[str]:
  """Yields warnings about differences between the sets that make metrics misleading."""
  if of_real.sha256 == of_fake.sha256:
    yield "the generated images are the real ones: the distances compare a set with itself"
  if of_real.count != of_fake.count:
    yield (f"{of_real.count:,} real and {of_fake.count:,} generated images: most metrics depend on "
           f"both counts; --samples={min(of_real.count, of_fake.count)} makes them equal")
  if of_real.is_gray != of_fake.is_gray:
    gray, color = ("real", "generated") if of_real.is_gray else ("generated", "real")
    yield f"all {gray} images are gray, but the {color} ones are in color"
  if real.formats and fake.formats and real.formats != fake.formats:
    names = [" and ".join(sorted(images.formats)) for images in (real, fake)]
    yield (f"the real files are {names[0]}, but the generated ones {names[1]}: the metrics pick up "
           "JPEG artifacts; save both as PNG, from the originals")
  if (shares := _shares_apart(real.classes, fake.classes)) is not None:
    name, *both = shares
    yield (f"the class proportions differ: {name} is {both[0]:.0%} of the real images and "
           f"{both[1]:.0%} of the generated ones, which affects every distance")
  if real.resizing != fake.resizing:
    yield (f"resizing of the real images: {real.resizing}; of the generated ones: {fake.resizing}. "
           "This affects the metrics")


def _shares_apart(real: Classes, fake: Classes) -> tuple[str, float, float] | None:
  """Returns the class whose frequencies differ most, and both; None if chance may explain it."""
  of_fake = real.with_counts_of(fake)
  if of_fake is None:
    return None
  counts = np.array([real.counts, of_fake.counts], np.float64)
  sizes = counts.sum(1, keepdims=True)
  shares = counts / sizes
  # Half the sum of differences, and about twice its expected value by chance at these sizes.
  distance = 0.5 * np.abs(shares[0] - shares[1]).sum()
  chance = np.sqrt(shares.mean(0) * (1 / sizes).sum()).sum()
  if distance < max(_LEAST_SHARE, chance):
    return None
  most = int(np.abs(shares[0] - shares[1]).argmax())
  return real.names[most], shares[0, most], shares[1, most]
