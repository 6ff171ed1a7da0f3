"""Nearest neighbors of samples, and the distances to them."""

from models.metrics.comparison import Gathered
from models.metrics.distances.feature_statistics import FeatureStatistics
from models.metrics.images.image_sets import Source
from models.metrics.memorization import measure, spread, write
from models.vision.images.image_source import InMemoryImages

import numpy as np
from PIL import Image


def gathered(features):
  return Gathered(len(features), FeatureStatistics.of(features), features)


def test_distances_are_those_to_the_nearest_real_image():
  random = np.random.default_rng(0)
  real, generated = random.normal(size=[30, 4]), random.normal(size=[9, 4])
  generated[3] = real[11]
  found = measure(gathered(real), gathered(generated))
  apart = np.linalg.norm(generated[:, None] - real, axis=-1)
  np.testing.assert_array_equal(found.rows, np.argsort(apart, axis=1)[:, :6])
  np.testing.assert_allclose(found.generated, apart.min(1), rtol=1e-6, atol=1e-6)
  between = np.linalg.norm(real[:, None] - real, axis=-1) + 1e9 * np.eye(30)
  np.testing.assert_allclose(found.real, between.min(1), rtol=1e-6)
  assert found.rows[3, 0] == 11 and found.generated[3] < 1e-6
  assert found.medians()["real"] == np.median(found.real)


def test_fewer_real_images_than_neighbors():
  found = measure(gathered(np.array([[0.0], [3.0]])), gathered(np.array([[1.0]])))
  np.testing.assert_array_equal(found.rows, [[0, 1]])
  np.testing.assert_allclose(found.real, [3, 3])


def test_samples_are_spread_by_rank():
  distances = np.array([5.0, 0.0, 4.0, 1.0, 3.0, 2.0])
  np.testing.assert_array_equal(spread(distances, 3), [1, 5, 0])
  np.testing.assert_array_equal(spread(distances, 10), np.argsort(distances))


def test_the_picture_has_the_images_of_the_numbers_that_were_measured(tmp_path):
  def plain(first):
    pixels = np.broadcast_to(np.arange(first, first + 30, dtype=np.uint8)[:, None, None, None],
                             [30, 8, 8, 3])
    return Source("plain", InMemoryImages(pixels, np.zeros(30, int), ("a",)))

  of_real, of_generated = np.arange(4, 30, 3), np.arange(11, 29, 2)  # 9 of each.
  features = np.random.default_rng(0).normal(size=[2, 9, 3])
  found = measure(gathered(features[0]), gathered(features[1]))
  write(tmp_path, found, plain(50), of_real, plain(150), of_generated)
  with Image.open(tmp_path / "neighbors.png") as file:
    picture = np.asarray(file)[16::33]  # The middles of enlarged images, which have a border.
  order = np.argsort(found.generated)
  assert picture[:, 16, 0].tolist() == (150 + of_generated[order]).tolist()
  assert picture[:, 50 + 16::33, 0][:, :6].tolist() == (50 + of_real[found.rows[order]]).tolist()
