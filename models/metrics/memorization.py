"""Memorization: the real images nearest to samples, and their distances."""

import dataclasses
from pathlib import Path

from models.metrics.comparison import Gathered
from models.metrics.distances.neighbors import nearest
from models.metrics.images.image_sets import ImageSet, pick
from models.vision.images import grid
from models.vision.images.write import write_picture

import numpy as np

_NEIGHBORS = 6


@dataclasses.dataclass(frozen=True)
class Distances:
  """Distances of images from the nearest real one, in feature space.

  If a generator copies its data, samples are much closer to real images than real images are to
  each other.
  """

  generated: np.ndarray  # float32 [m], of generated images.
  real: np.ndarray  # float32 [n], of real images, excluding the image itself.
  # int [m, k], the nearest real images of each generated one, nearest first.
  rows: np.ndarray

  def medians(self) -> dict[str, float]:
    """Returns the median distances of generated and of real images."""
    return {"generated": float(np.median(self.generated)), "real": float(np.median(self.real))}


def measure(real: Gathered, generated: Gathered) -> Distances:
  """Computes the distances, given the features of both.

  Raises:
    UsageError: the features are invalid.
  """
  rows, distances = nearest(generated.features, real.features, min(_NEIGHBORS, real.count))
  _, between = nearest(real.features, real.features, min(2, real.count))
  return Distances(distances[:, 0], between[:, -1], rows)


def spread(distances: np.ndarray, count: int = 10) -> np.ndarray:
  """Returns indices of at most `count` numbers, from the least to the greatest, spaced by rank."""
  order = np.argsort(distances, kind="stable")
  return order[np.unique(np.linspace(0, len(order) - 1, count).round().astype(int))]


def write(folder: Path, distances: Distances, real: ImageSet, real_indices: np.ndarray,
          generated: ImageSet, generated_indices: np.ndarray) -> None:
  """Writes `neighbors.png` and `distances.png` to the folder.

  The first shows some samples next to their neighbors, with those nearest to a real image on top.
  The second has histograms of both distances. The indices are those of the measured images.
  """
  chosen = spread(distances.generated)
  rows = distances.rows[chosen]
  write_picture(folder / "neighbors.png", grid.side_by_side(
      grid.image_grid(pick(generated, generated_indices[chosen]), 1),
      grid.image_grid(pick(real, real_indices[rows.ravel()]), rows.shape[1])))
  _draw(folder / "distances.png", distances)


def _draw(file: Path, distances: Distances) -> None:
  from matplotlib.figure import Figure  # Slow to import.
  figure = Figure(figsize=(6, 3.5), layout="constrained")
  axes = figure.subplots()
  top = max(distances.generated.max(), distances.real.max()) or 1.0
  for values, label in ((distances.real, "real image to the nearest other one"),
                        (distances.generated, "generated image to the nearest real one")):
    axes.hist(values, np.linspace(0, top, 61).tolist(), density=True, histtype="stepfilled",
              alpha=0.5, label=label)
  axes.set(xlabel="distance of features", yticks=[])
  axes.legend()
  figure.savefig(file, dpi=150)
