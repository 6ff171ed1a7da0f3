"""Rows of metrics: their names, their values beside the functions behind them, bounded memory."""

from models.metrics import comparison
from models.metrics.comparison import NEEDS, compare, gather, needs
from models.metrics.distances.frechet import intra_class_frechet_distance
from models.metrics.distances.inception_score import inception_score
from models.metrics.distances.kernel import kernel_distance
from models.metrics.distances.neighbors import neighbor_scores
from models.metrics.extractors.extractor import Extracted

import numpy as np
import pytest


class Projected:
  """An extractor of random projections of 16 x 16 pixels."""

  name = "projected"
  num_features = 5
  resizing = "nothing"

  def __init__(self, is_inception: bool = False):
    self.is_inception = is_inception
    self._matrix = np.random.default_rng(0).normal(size=[768, 8]).astype(np.float32) / 768

  def __call__(self, images: np.ndarray) -> Extracted:
    values = images.reshape(len(images), -1).astype(np.float32) @ self._matrix
    return Extracted(values[:, :5], values[:, 5:])


def sets(count: int) -> list[list[np.ndarray]]:
  generator = np.random.default_rng(1)
  return [np.split(generator.integers(0, top, [count, 16, 16, 3], np.uint8), 4)
          for top in (256, 230)]


def test_every_row_has_the_number_of_its_function(monkeypatch):
  monkeypatch.setattr(comparison, "_KID_SUBSETS", 3)
  monkeypatch.setattr(comparison, "_KID_SUBSET_SIZE", 20)
  extractor, metrics = Projected(is_inception=True), list(NEEDS)
  real, generated = (gather(batches, extractor, needs(metrics)) for batches in sets(40))
  real.labels, generated.labels = np.arange(40) % 2, np.minimum(np.arange(40) % 3, 1)
  rows = {row.name: row for row in compare(real, generated, extractor, metrics)}
  assert list(rows) == ["FID", "KID", "Precision", "Recall", "Density", "Coverage",
                        "Inception score", "Sliced Wasserstein distance", "Intra-class FID"]
  kid = kernel_distance(real.features, generated.features, 3, 20)
  assert (rows["KID"].value, rows["KID"].spread) == kid
  score = inception_score(generated.logits)
  assert (rows["Inception score"].value, rows["Inception score"].spread) == score
  # Splits share no images: the interval is Student's t of ten, with the deviation of ddof = 1.
  reach = 2.262157 * score.std * np.sqrt(10 / 9) / np.sqrt(10)
  assert rows["Inception score"].interval == pytest.approx(
      (score.mean - reach, score.mean + reach), rel=1e-6)
  assert all(row.interval is None for row in rows.values() if row.metric != "is")
  intra = intra_class_frechet_distance(real.features, real.labels, generated.features,
                                       generated.labels)
  assert (rows["Intra-class FID"].value, rows["Intra-class FID"].by_class) == intra
  improved, prdc = neighbor_scores(real.features, generated.features)
  names = ("Precision", "Recall", "Density", "Coverage")
  assert tuple(rows[name].value for name in names) == (*improved[:2], *prdc[2:])
  assert {row.num_real for row in rows.values()} == {0, 40}
  assert rows["KID"].method == "3 subsets of 20, degree 3"
  assert rows["FID"].resizing == "nothing" and rows["FID"].features == "projected"


def test_real_and_generated_images_of_other_counts_keep_their_own():
  extractor, metrics = Projected(), ["fid", "intra_fid", "prdc", "is"]
  real = gather(sets(40)[0], extractor, needs(metrics))
  generated = gather(sets(28)[1], extractor, needs(metrics))
  real.labels, generated.labels = np.arange(40) % 2, np.minimum(np.arange(28) % 3, 1)
  rows = compare(real, generated, extractor, metrics)
  assert {(row.num_real, row.num_generated) for row in rows} == {(40, 28), (0, 28)}
  assert (rows[1].value, rows[1].by_class) == intra_class_frechet_distance(
      real.features, real.labels, generated.features, generated.labels)
  improved, prdc = neighbor_scores(real.features, generated.features)
  assert [row.value for row in rows[2:6]] == [*improved[:2], *prdc[2:]]


def test_only_inception_has_the_published_names():
  extractor = Projected()
  real, generated = (gather(batches, extractor, needs(["fid", "prdc", "is"]))
                     for batches in sets(40))
  rows = compare(real, generated, extractor, ["fid", "prdc", "is"])
  assert [row.name for row in rows] == [
      f"{name} (projected)" for name in ("Fréchet distance", "Precision", "Recall", "Density",
                                         "Coverage", "Score of classes")]


def test_only_what_is_needed_is_kept():
  gathered = gather(sets(40)[0], Projected(), needs(["fid"]))
  assert gathered.statistics.count == gathered.count == 40
  assert gathered.features.size == gathered.logits.size == gathered.images.size == 0
  kept = gather(sets(40)[0], Projected(), needs(["fid", "kid"]))
  np.testing.assert_allclose(gathered.statistics.mean, kept.statistics.mean, rtol=1e-12)
  np.testing.assert_allclose(gathered.statistics.covariance, kept.statistics.covariance,
                             rtol=1e-9, atol=1e-12)
