"""Compares generated images with real ones: gathers features once, then computes metrics.

    real = gather(real_set.batches(np.arange(10_000)), extractor, needs(metrics))
    generated = gather(samples, extractor, needs(metrics))
    rows = compare(real, generated, extractor, metrics)
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from models.metrics.distances.checks import checked
from models.metrics.distances.feature_statistics import FeatureStatistics
from models.metrics.distances.frechet import frechet_distance, intra_class_frechet_distance
from models.metrics.distances.inception_score import inception_score
from models.metrics.distances.kernel import kernel_distance
from models.metrics.distances.neighbors import IMPROVED, PRDC, neighbor_scores
from models.metrics.distances.sliced_wasserstein import sliced_wasserstein_distance
from models.metrics.extractors.extractor import Extracted, Extractor
from replicator import UsageError
from replicator.console.formatting import format_number
from replicator.errors import nearest

import numpy as np
import scipy.special

_KID_SUBSETS, _KID_SUBSET_SIZE = 100, 1000
_SPLITS = 10


@dataclasses.dataclass(frozen=True)
class Row:
  """The value of a metric, and how it was computed."""

  metric: str  # Its name on the command line, such as `fid`.
  # Its name in publications. It is FID, KID or Inception score only with Inception's features;
  # otherwise the name includes the features.
  name: str
  value: float
  spread: float | None  # The standard deviation between subsets or splits.
  method: str  # Subsets, splits or neighbors.
  features: str  # The name of the extractor; `pixels` for a metric without one.
  num_real: int  # 0 for a metric of generated images only.
  num_generated: int
  resizing: str  # How the extractor resizes.
  # The 95 % confidence interval of a mean over splits, which share no images. Metrics without
  # splits have none; the subsets of KID share images.
  interval: tuple[float, float] | None = None
  by_class: dict[Any, float] | None = None  # The distances that an intra-class distance averages.


@dataclasses.dataclass
class Gathered:
  """Inputs of metrics, from n images; unneeded ones are empty.

  Features are float32 [n, d], logits float32 [n, k], images uint8 [n, h, w, 3], and labels [n] are
  class names. For `intra_fid`, the caller sets the labels.
  """

  count: int  # n.
  statistics: FeatureStatistics  # The features' statistics.
  features: np.ndarray = dataclasses.field(default_factory=lambda: np.empty([0, 0]))
  logits: np.ndarray = dataclasses.field(default_factory=lambda: np.empty([0, 0]))
  images: np.ndarray = dataclasses.field(default_factory=lambda: np.empty([0, 0]))
  labels: np.ndarray = dataclasses.field(default_factory=lambda: np.empty([0], np.int64))


def needs(metrics: Iterable[str]) -> set[str]:
  """Returns the inputs of metrics: some of `statistics`, `features`, `logits` and `images`.

  Raises:
    UsageError: a metric is unknown.
  """
  for metric in metrics:
    if metric not in NEEDS:
      raise UsageError(f"no metric '{metric}': choose from {','.join(NEEDS)}."
                       f"{nearest(metric, NEEDS)}")
  return {NEEDS[metric] for metric in metrics}


def names(metric: str, is_inception: bool) -> list[str]:
  """Returns the names of the rows of a metric, without the name of the features."""
  return [_PUBLISHED.get(name, name) if is_inception else name for name in _METRICS[metric].names]


def check_counts(metrics: Iterable[str], num_real: int, num_generated: int) -> None:
  """Raises a UsageError if there are too few images for a metric, before anything is computed."""
  for metric in metrics:
    if metric == "swd" and num_real != num_generated:
      raise UsageError(f"metric 'swd' of {num_real:,} real and {num_generated:,} generated images: "
                       "it needs equally many of both; use fewer of one, or leave 'swd' out")
    count = num_generated if metric == "is" else min(num_real, num_generated)
    if count < _METRICS[metric].least:
      raise UsageError(f"metric '{metric}' of {num_real:,} real and {num_generated:,} generated "
                       f"images: it needs at least {_METRICS[metric].least:,} of each; use more "
                       f"images, or leave '{metric}' out")


def gather(batches: Iterable[np.ndarray], extractor: Extractor | None, needed: set[str],
           whose: str = "generated") -> Gathered:
  """Computes the needed inputs of metrics from images, one batch uint8 [n, h, w, 3] at a time.

  See `gather_extracted` for the other arguments and errors.
  """
  return gather_extracted(((images, extractor(images) if extractor else None)
                           for images in batches), extractor, needed, whose)


def gather_extracted(batches: Iterable[tuple[np.ndarray, Extracted | None]],
                     extractor: Extractor | None, needed: set[str],
                     whose: str = "generated") -> Gathered:
  """Collects what is `needed` (see `needs`) from batches of uint8 [n, h, w, 3] and their features.

  If only `statistics` are needed, memory does not grow with the number of images. The extractor may
  be None if only images are needed. `whose` is `real` or `generated`, for errors.

  Raises:
    UsageError: there are no images, features are not finite, or the extractor has no logits.
  """
  count = 0
  statistics = FeatureStatistics.of(np.empty([0, extractor.num_features if extractor else 1]))
  kept: dict[str, list[np.ndarray]] = {name: [] for name in needed - {"statistics"}}
  for images, extracted in batches:
    count += len(images)
    if "images" in kept:
      kept["images"].append(images)
    if extractor is None or extracted is None:
      continue
    checked(extracted.features, whose)
    if "logits" in kept:
      if extracted.logits is None:
        raise UsageError(f"metric 'is': {extractor.name} has features, but no class logits; leave "
                         "'is' out, or use a different extractor")
      kept["logits"].append(extracted.logits)
    if "features" in kept:
      kept["features"].append(extracted.features)
    elif "statistics" in needed:
      statistics += FeatureStatistics.of(extracted.features, whose)
  if not count:
    raise UsageError(f"There are no {whose} images")
  arrays = {name: np.concatenate(parts) for name, parts in kept.items()}
  if "features" in arrays:
    statistics = FeatureStatistics.of(arrays["features"], whose)
  return Gathered(count, statistics, **arrays)


def compare(real: Gathered, generated: Gathered, extractor: Extractor | None,
            metrics: Sequence[str]) -> list[Row]:
  """Computes metrics, which are keys of `NEEDS`; returns their rows, in order.

  Both sets must have been gathered with the extractor. It may be None if all metrics use pixels.

  Raises:
    UsageError: a metric rejects its inputs.
  """
  rows = []
  for metric in metrics:
    # The names of pixel metrics do not depend on the features.
    features, resizing, is_inception = "pixels", "none", True
    if extractor is not None and NEEDS[metric] != "images":
      features, resizing, is_inception = extractor.name, extractor.resizing, extractor.is_inception
    numbers = _METRICS[metric].numbers(real, generated)
    for name, number in zip(names(metric, is_inception), numbers, strict=True):
      rows.append(Row(
          metric=name.lower() if metric == "prdc" else metric,
          name=name if is_inception else f"{name} ({features})",
          features=features, num_real=0 if metric == "is" else real.count,
          num_generated=generated.count, resizing=resizing, **{"spread": None, **number}))
  return rows


# ---- The numbers of each metric, as fields of rows ----------------------------------------------


def _fid(real: Gathered, generated: Gathered) -> list[dict[str, Any]]:
  distance = frechet_distance(real.statistics, generated.statistics)
  return [{"value": distance, "method": "unbiased covariances"}]


def _intra_fid(real: Gathered, generated: Gathered) -> list[dict[str, Any]]:
  distance = intra_class_frechet_distance(real.features, real.labels, generated.features,
                                          generated.labels)
  of_value = {value: which for which, value in distance.by_class.items()}
  ends = (f"{format_number(value)} (class {of_value[value]})"
          for value in (min(of_value), max(of_value)))
  method = f"mean over {len(distance.by_class)} classes, {' to '.join(ends)}"
  return [{"value": distance.mean, "method": method, "by_class": distance.by_class}]


def _kid(real: Gathered, generated: Gathered) -> list[dict[str, Any]]:
  distance = kernel_distance(real.features, generated.features, _KID_SUBSETS, _KID_SUBSET_SIZE)
  method = f"{_KID_SUBSETS} subsets of {_KID_SUBSET_SIZE:,}, degree 3"
  return [{"value": distance.mean, "spread": distance.std, "method": method}]


def _prdc(real: Gathered, generated: Gathered) -> list[dict[str, Any]]:
  improved, prdc = neighbor_scores(real.features, generated.features, [IMPROVED, PRDC])
  values = improved.precision, improved.recall, prdc.density, prdc.coverage
  return [{"value": value, "method": f"k = {k}, {'closed' if closed else 'open'} balls"}
          for value, (k, closed) in zip(values, [IMPROVED, IMPROVED, PRDC, PRDC], strict=True)]


def _is(real: Gathered, generated: Gathered) -> list[dict[str, Any]]:
  score = inception_score(generated.logits, _SPLITS)
  # Student's t of the splits; their standard deviation is divided by n, not n - 1.
  reach = scipy.special.stdtrit(_SPLITS - 1, 0.975) * score.std / np.sqrt(_SPLITS - 1)
  return [{"value": score.mean, "spread": score.std, "method": f"{_SPLITS} splits",
           "interval": (float(score.mean - reach), float(score.mean + reach))}]


def _swd(real: Gathered, generated: Gathered) -> list[dict[str, Any]]:
  distance = sliced_wasserstein_distance(real.images, generated.images)
  heights = ", ".join(map(str, distance.by_height))
  return [{"value": distance.mean, "method": f"times 1,000; mean over heights {heights}"}]


class _Metric(NamedTuple):
  """A metric: its input, minimum number of images, row names, and function for row fields."""

  needs: str
  least: int
  names: tuple[str, ...]
  numbers: Callable[[Gathered, Gathered], list[dict[str, Any]]]


_METRICS = {
    "fid": _Metric("statistics", 2, ("Fréchet distance",), _fid),
    "kid": _Metric("features", _KID_SUBSET_SIZE, ("Kernel distance",), _kid),
    "prdc": _Metric("features", PRDC.k + 1, ("Precision", "Recall", "Density", "Coverage"), _prdc),
    "is": _Metric("logits", _SPLITS, ("Score of classes",), _is),
    "swd": _Metric("images", 1, ("Sliced Wasserstein distance",), _swd),
    "intra_fid": _Metric("features", 2, ("Intra-class Fréchet distance",), _intra_fid)}
_PUBLISHED = {"Fréchet distance": "FID", "Kernel distance": "KID",
              "Intra-class Fréchet distance": "Intra-class FID",
              "Score of classes": "Inception score"}
NEEDS = {name: metric.needs for name, metric in _METRICS.items()}
"""The metrics, and the input that each needs; `intra_fid` also needs labels."""


def table(report: dict[str, Any]) -> str:
  """Formats a report of `replicator evaluate` as a table, followed by facts about all rows."""
  cells = [("metric", "value", "spread", "95% interval", "real", "generated", "method")]
  for row in report["rows"]:
    spread = "none" if row["spread"] is None else format_number(row["spread"])
    interval = " to ".join(map(format_number, row["interval"] or [])) or "none"
    cells.append((row["name"], format_number(row["value"]), spread, interval,
                  f"{row['num_real']:,}" if row["num_real"] else "-",
                  f"{row['num_generated']:,}", row["method"]))
  widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
  lines = ["  ".join([line[0].ljust(widths[0]),
                      *(cell.rjust(width) for cell, width in
                        zip(line[1:-1], widths[1:-1], strict=True)), line[-1]])
           for line in cells]
  height, width = report["resolution"]
  resizings = dict.fromkeys(row["resizing"] for row in report["rows"])
  of_files = report["resizing_of_files"]
  lines += [
      f"features: {', '.join(dict.fromkeys(row['features'] for row in report['rows']))}",
      f"images: {height}x{width}; resized files: {of_files['real']} (real), {of_files['fake']} "
      f"(generated); resized for the features: {', '.join(resizings)}"]
  if medians := report.get("median_distance_to_nearest_real"):
    lines.append(f"median distance to the nearest real image: {format_number(medians['generated'])}"
                 f" for a generated image, {format_number(medians['real'])} for another real one")
  if report["step"] is not None:
    passes = report["standing_statistics"]
    lines.append(f"generated by {report['fake']}, step {report['step']}, seed {report['seed']}" + (
        f", with standing statistics of {passes} passes" if passes else "") + (
        f", {report['labels']}" if report["labels"] else ""))
  return "\n".join(lines)
