"""Metrics in features during a training: what they measure, in batches, beside real images."""

import weakref

from models.gan.evaluation import feature_metrics
from models.gan.evaluation.feature_metrics import FeatureMetrics
from models.gan.evaluation.sample_evaluator import SampleEvaluator
from models.gan.latents.distributions import normal_latents
from models.metrics.distances.feature_statistics import FeatureStatistics
from models.metrics.distances.frechet import frechet_distance, intra_class_frechet_distance
from models.metrics.extractors.extractor import Extracted
from models.vision.builtin.digits import Digits, digit_images
from models.vision.images.classes import Classes
from models.vision.images.image_source import InMemoryImages, to_unit_range
from replicator import Replicator
from replicator.errors import UsageError
from replicator.step import context
from replicator.strategies.distributed_evaluation import EvaluationShards, sharded

import numpy as np
import pytest
import tensorflow as tf

IMAGES = to_unit_range(digit_images()[0]).numpy()


class Means:
  """An extractor of the means of the rows of gray images."""

  name = "means"
  num_features = 8
  resizing = "none"
  is_inception = False

  def __call__(self, images: np.ndarray) -> Extracted:
    return Extracted(images.mean((2, 3)).astype(np.float32), None)


def test_real_images_are_near_and_noise_is_far(tmp_path):
  quality = FeatureMetrics(Digits(), tmp_path, num_samples=1700)
  near = quality.measure(lambda n, part: IMAGES[:n][part])
  noise = np.random.default_rng(0).uniform(-1, 1, IMAGES.shape).astype(np.float32)
  far = quality.measure(lambda n, part: noise[:n][part])
  assert list(near) == ["frechet_distance", "precision", "recall", "density", "coverage"]
  assert near["frechet_distance"] < 1 < 50 < far["frechet_distance"]
  assert near["coverage"] > 0.9 > 0.2 > far["coverage"]
  assert quality.description.startswith("1,700 real and 1,700 generated images; features: "
                                        "classifier of Digits")


def test_the_distance_is_that_of_all_images_in_any_batches(tmp_path, monkeypatch):
  chosen = np.sort(np.random.default_rng(1).permutation(1797)[:100])
  pixels = np.repeat(digit_images()[0], 3, -1)
  expected = frechet_distance(*(FeatureStatistics.of(Means()(pixels[indices]).features)
                                for indices in (chosen, np.arange(100))))
  for size in (7, 100, 250):
    monkeypatch.setattr(feature_metrics, "_AT_A_TIME", size)
    quality = FeatureMetrics(Digits(), tmp_path, Means, ["fid"], 100)
    found = quality.measure(lambda n, part: IMAGES[:n][part])
    assert found == {"frechet_distance": pytest.approx(expected, rel=1e-9)}


def test_the_numbers_are_the_same_on_any_number_of_replicas(tmp_path, monkeypatch):
  monkeypatch.setattr(feature_metrics, "_AT_A_TIME", 32)
  quality = FeatureMetrics(Digits(), tmp_path, metrics=["fid", "prdc", "is"], num_samples=250)
  expected = quality.measure(lambda n, part: IMAGES[-n:][part])
  assert len(expected) == 6 and np.isfinite(list(expected.values())).all()
  for replicas in (1, 2, 4):
    with context.entered(tf.constant(0, tf.int64)), sharded(
        EvaluationShards(Replicator("mirrored", replicas), on_all_workers=True)):
      assert quality.measure(lambda n, part: IMAGES[-n:][part]) == expected


def test_with_statistics_alone_memory_does_not_grow_with_the_samples(tmp_path, monkeypatch):
  monkeypatch.setattr(feature_metrics, "_AT_A_TIME", 50)
  quality = FeatureMetrics(Digits(), tmp_path, Means, ["fid"], 1700)
  made = []

  def generate(n, part):
    images = IMAGES[:n][part].copy()
    made.append(weakref.ref(images))
    assert sum(each() is not None for each in made) <= 2
    return images

  quality.measure(generate)
  assert len(made) == 34


def test_the_distance_within_classes_needs_a_conditional_generator(tmp_path):
  quality = FeatureMetrics(Digits(), tmp_path, Means, ["intra_fid"], 1700)
  with pytest.raises(UsageError, match="has 'intra_fid', but the generator has no classes"):
    quality.measure(lambda n, part: IMAGES[:n][part])


def test_classes_that_are_not_equal_in_batches_that_they_do_not_divide(tmp_path, monkeypatch):
  monkeypatch.setattr(feature_metrics, "_AT_A_TIME", 32)
  images, labels = digit_images()[0][:100], np.minimum(digit_images()[1][:100], 2)
  source = InMemoryImages(images, labels, tuple("012"))
  found = FeatureMetrics(source, tmp_path, Means, ["intra_fid"], 40).measure(
      lambda n, part: IMAGES[:n][part], Classes.numbered(3))
  chosen = np.sort(np.random.default_rng(1).permutation(100)[:40])
  features = Means()(np.repeat(digit_images()[0], 3, -1)).features
  expected = intra_class_frechet_distance(features[chosen], labels[chosen], features[:40],
                                          np.arange(40) % 3).mean
  assert found == {"intra_class_frechet_distance": pytest.approx(expected, rel=1e-9)}


def test_images_that_are_not_finite_have_no_numbers(tmp_path):
  quality = FeatureMetrics(Digits(), tmp_path, Means, ["fid", "prdc"], 50)
  found = quality.measure(lambda n, part: np.full([50, 8, 8, 1], np.nan))
  assert list(found) == ["frechet_distance", "precision", "recall", "density", "coverage"]
  assert np.isnan(list(found.values())).all()


def test_too_few_images_for_a_metric_end_with_one_line(tmp_path):
  with pytest.raises(UsageError, match="metric 'kid' of 900 real and 900 generated"):
    FeatureMetrics(Digits(), tmp_path, Means, ["kid"], 900)
  with pytest.raises(UsageError, match="no metric 'fdi'"):
    FeatureMetrics(Digits(), tmp_path, Means, ["fdi"])


class Perfect:
  """A generator of dark images of the class 0 and bright ones of the class 1."""

  latents = staticmethod(normal_latents)
  latent_dim, num_classes = 64, 2

  def generate(self, z, labels):
    level = np.where(np.asarray(labels) == 0, 60.0, 190.0)[:, None]
    gray = np.clip(np.floor(level + 25 * np.asarray(z)), 0, 255)
    return gray.reshape(-1, 8, 8, 1) / 127.5 - 1


def test_a_perfect_generator_of_unequal_classes_is_near_its_data(tmp_path):
  labels = np.repeat([0, 1], [270, 30])
  z = np.random.default_rng(0).normal(size=[300, 64])
  images = np.round((Perfect().generate(z, labels) + 1) * 127.5).astype(np.uint8)
  data = InMemoryImages(images, labels, ("dark", "bright"))
  quality = lambda *given: FeatureMetrics(*given, Means, ["fid", "prdc", "intra_fid"], 300)
  found, equal = (SampleEvaluator(data, str(tmp_path), quality, 2, balanced)(Perfect())
                  for balanced in (False, True))
  # Shares of a half move the mean of each of 8 features by almost 0.4 x 130.
  assert equal.scalars["frechet_distance"] > 8 * 50 ** 2
  assert found.scalars["frechet_distance"] < 30
  assert found.scalars["coverage"] > 0.9 and found.scalars["intra_class_frechet_distance"] < 200
