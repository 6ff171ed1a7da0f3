"""The linear probe reads what is linear in features."""

from models.vision.classification.linear_probe import linear_probe

import numpy as np

RNG = np.random.default_rng(0)


def test_it_reads_classes_that_a_plane_separates_at_any_scale():
  features = RNG.normal(size=[400, 5]) * [1e-4, 1, 1e4, 1, 1] + 7
  labels = (features[:, 0] > 7).astype(int)
  assert linear_probe(features[:300], labels[:300], features[300:], labels[300:]) > 0.95


def test_features_that_are_not_finite_have_no_accuracy():
  features = np.array([[0.0], [1.0], [np.nan], [3.0]])
  labels = np.array([0, 1, 0, 1])
  assert np.isnan(linear_probe(features, labels, features[:2], labels[:2]))
  assert np.isnan(linear_probe(features[:2], labels[:2], features, labels))
