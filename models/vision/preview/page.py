"""The page of a preview: one HTML file that needs no other."""

import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from PIL import Image

from models.vision.augmentation.random_view import Augmented
from models.vision.images.decode import as_image, center_square
from models.vision.images.image_source import ImageSource
from models.vision.preview import drawing
from models.vision.preview.checks import Concern, percent
from models.vision.preview.contents import Contents
from models.vision.preview.survey import Survey
from replicator.training.inputs import InputContext, batches
from replicator.workdir import charts, pages
from replicator.workdir.pages import Badge, Panel, Picture

_TEMPLATES = pathlib.Path(__file__).parent / "templates"
_SEED = 7            # Fixed, so that the same data makes the same page.
_A_CLASS = 12        # Pictures of a class.
_MOST_CLASSES = 60   # With pictures of their own, or bars of their own.
_EXTREMES = 10       # The largest and the smallest classes, which are listed if there are more.
_FREQUENT = 6        # Sizes that are listed.
_BATCH = 24          # Examples of the batch.
_CROPS = 6           # Images whose crop is drawn.
_GROUPS = 12         # Duplicates of each kind that are drawn.
_SIDE = 96           # Pixels of a picture of a class.
_WIDE = 160          # Pixels of the longer side of a duplicate.


@dataclasses.dataclass(frozen=True)
class Pictured:
  """A class with some of its pictures, or images that belong together."""

  title: str
  pictures: Sequence[Picture]
  note: str = ""
  kind: str = ""


@dataclasses.dataclass(frozen=True)
class Bar:
  """The number of images of a class, and that as a share of the largest number."""

  name: str
  count: int
  share: float


def render(contents: Contents, survey: Survey, resolution: int, found: Sequence[Concern],
           augmentation: Sequence[str], command: str) -> str:
  """The page.

  Args:
    contents: the images.
    survey: what was seen of them.
    resolution: the height and width of the examples that a training gets.
    found: what may be wrong.
    augmentation: the bindings of `Augmentation` that are in force.
    command: what makes the same page again.
  """
  drawn = _Pictures(contents, survey, resolution)
  return pages.render(
      "preview.html", _TEMPLATES, title=contents.name, what="Preview of images",
      badges=_badges(contents, survey, found), tiles=_tiles(contents, survey), concerns=found,
      bars=_bars(contents, survey), ranks=_ranks(survey), classes=drawn.classes(),
      num_classes=len(contents.class_names), batch=drawn.batch(False), augmented=drawn.batch(True),
      augmentation=augmentation, resolution=resolution,
      crops=drawn.crops(), cut=percent(float(np.median(survey.cut_away))),
      sizes=_sizes(survey, resolution), frequent=list(survey.sizes().items())[:_FREQUENT],
      equal=drawn.equal(), similar=drawn.similar(), survey=survey,
      unreadable=[(contents.title(index), reason) for index, reason
                  in list(survey.unreadable.items())[:_GROUPS]],
      size=contents.size, command=command)


# ---- Numbers ------------------------------------------------------------------------------------


def _badges(contents: Contents, survey: Survey, found: Sequence[Concern]) -> list[Badge]:
  kind = found[0].kind if found else "good"
  warnings = f"{len(found)} warning{'s' if len(found) != 1 else ''}" if found else "no warnings"
  seen = ("all images were looked at" if survey.num_examined == contents.size else
          f"{survey.num_examined:,} of {contents.size:,} images, drawn at random, were looked at")
  return [Badge(warnings, kind), Badge(seen)]


def _tiles(contents: Contents, survey: Survey) -> dict[str, str]:
  counts, sizes = survey.counts, survey.sizes()
  tiles = {"images": f"{contents.size:,}", "classes": f"{len(counts):,}"}
  if len(counts) > 1:
    tiles["images of a class"] = _span(counts)
  (width, height), _ = next(iter(sizes.items()))
  tiles["pixels" if len(sizes) == 1 else "pixels, the shorter side"] = (
      f"{width} x {height}" if len(sizes) == 1 else _span(survey.short_sides))
  if formats := survey.formats():
    tiles[", ".join(f"{count:,} {name}" for name, count in formats.items())] = (
        f"{survey.rows['num_bytes'].sum() / 1e6:,.1f} MB")
  return tiles


def _span(numbers: np.ndarray) -> str:
  low, high = numbers.min(), numbers.max()
  return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _bars(contents: Contents, survey: Survey) -> list[Bar]:
  """All classes in their order; of very many, the largest and the smallest."""
  order = np.arange(len(survey.counts))
  if len(order) > _MOST_CLASSES:
    order = np.argsort(-survey.counts, kind="stable")
    order = np.concatenate([order[:_EXTREMES], order[-_EXTREMES:]])
  most = max(1, int(survey.counts.max()))
  return [Bar(contents.class_names[label], int(survey.counts[label]), survey.counts[label] / most)
          for label in order.tolist()]


def _ranks(survey: Survey) -> list[Panel]:
  """The counts of very many classes, the largest first, as a curve."""
  if len(survey.counts) <= _MOST_CLASSES:
    return []
  ranks = np.arange(1, len(survey.counts) + 1)
  return [Panel("images of a class, by rank",
                charts.curve(ranks, np.sort(survey.counts)[::-1].astype(float)))]


def _sizes(survey: Survey, resolution: int) -> list[Panel]:
  """Histograms of what differs between images."""
  width, height = survey.rows["width"], survey.rows["height"]
  quantities = [("shorter side, in pixels", survey.short_sides, resolution),
                ("width / height", width / height, 1.0)]
  return [drawing.histogram(caption, values, at) for caption, values, at in quantities
          if values.min() != values.max()]


# ---- Pictures -----------------------------------------------------------------------------------


class _Pictures:
  """The pictures of a page."""

  def __init__(self, contents: Contents, survey: Survey, resolution: int) -> None:
    self._contents = contents
    self._survey = survey
    self._resolution = resolution
    self._random = np.random.default_rng(_SEED)

  def classes(self) -> list[Pictured]:
    """Some images of each class, as a training sees them; of very many classes, of some."""
    names, counts = self._contents.class_names, self._survey.counts
    shown = np.unique(np.linspace(0, len(names) - 1, _MOST_CLASSES).round().astype(int))
    some = [self._some_of(label) for label in shown.tolist()]
    side = min(self._resolution, _SIDE)
    drawn = self._drawn(np.concatenate(some), side, lambda image: center_square(image, side))
    return [Pictured(names[label], list(itertools.islice(drawn, len(positions))),
                     f"{len(positions)} of {counts[label]:,}" if counts[label] else "no image")
            for label, positions in zip(shown.tolist(), some, strict=True)]

  def _some_of(self, label: int) -> np.ndarray:
    """The positions of some images of a class, drawn at random."""
    of_class = np.flatnonzero(self._survey.rows["label"] == label)
    return np.sort(self._random.permutation(of_class)[:_A_CLASS])

  def _drawn(self, positions: np.ndarray, side: int,
             change: Callable[[Image.Image], Image.Image]) -> Iterator[Picture]:
    """The images at some positions, changed."""
    images = self._contents.pictures(self._survey.indices[positions], side)
    for position, image in zip(positions, images, strict=True):
      yield drawing.embedded(change(image), self._caption(position))

  def _caption(self, position: int) -> str:
    return self._contents.title(int(self._survey.indices[position]))

  def batch(self, is_augmented: bool) -> list[Picture]:
    """The first examples of a run, as its pipeline makes them."""
    plain = self._contents.source(self._resolution)
    source: ImageSource = Augmented(lambda: plain) if is_augmented else plain
    batch = next(batches(source, InputContext(_BATCH)).as_numpy_iterator())
    return [drawing.embedded(drawing.small(as_image(image).convert("RGB"), _SIDE),
                             self._contents.class_names[label])
            for image, label in zip(batch["image"], batch["label"], strict=True)]

  def crops(self) -> list[Pictured]:
    """Images with what is cut away, from the most to the least, beside what is left."""
    cut, resolution = self._survey.cut_away, self._resolution
    order = np.argsort(-cut, kind="stable")[:np.count_nonzero(cut)]
    if not len(order):
      return []
    chosen = order[np.unique(np.linspace(0, len(order) - 1, _CROPS).round().astype(int))]
    whole = self._drawn(chosen, drawing.WHOLE, drawing.framed)
    left = self._drawn(chosen, resolution, lambda image: drawing.small(
        center_square(image, resolution), _WIDE))
    return [Pictured(first.caption, (first, second), self._crop_note(position))
            for first, second, position in zip(whole, left, chosen, strict=True)]

  def _crop_note(self, position: int) -> str:
    row, share = self._survey.rows[position], float(self._survey.cut_away[position])
    return (f"{row['width']} x {row['height']}, {percent(share)} is cut away; "
            f"{min(row['width'], row['height'])} px to {self._resolution} px")

  def equal(self) -> list[Pictured]:
    """Groups of images with equal content, those in two classes first."""
    return [self._together(group[:1], group) for group in self._worst(self._survey.equal)]

  def similar(self) -> list[Pictured]:
    """Pairs that look the same, those in two classes first."""
    return [self._together(pair, pair) for pair in self._worst(list(self._survey.similar))]

  def _worst(self, groups: Sequence[np.ndarray]) -> list[np.ndarray]:
    return sorted(groups, key=lambda group: not self._survey.in_two_classes(group))[:_GROUPS]

  def _together(self, shown: np.ndarray, group: np.ndarray) -> Pictured:
    pictures = list(self._drawn(shown, _WIDE, lambda image: drawing.small(image, _WIDE)))
    labels = np.unique(self._survey.rows["label"][group])
    names = [self._contents.class_names[label] for label in labels]
    more = f" and {len(group) - 3:,} more" if len(group) > 3 else ""
    return Pictured(", ".join(map(self._caption, group[:3])) + more, pictures,
                    f"of the classes {', '.join(names[:3])}" if len(names) > 1 else "",
                    "bad" if len(names) > 1 else "")
