"""Inception scores that are known, and the reference's permutation."""

import numpy as np
import pytest

from models.metrics.distances.inception_score import inception_score

RANDOM = np.random.default_rng(0)


def test_it_is_the_divergence_from_the_mean_in_each_split():
  logits = RANDOM.normal(size=[103, 6])
  p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
  p = p[np.random.RandomState(3).permutation(103)]
  scores = [np.exp(np.mean(np.sum(q * np.log(q / q.mean(0)), axis=1)))
            for q in (p[:25], p[25:51], p[51:77], p[77:])]
  found = inception_score(logits, splits=4, seed=3)
  assert found == pytest.approx((np.mean(scores), np.std(scores)), rel=1e-12)


def test_a_class_that_no_image_can_show_is_no_nan():
  logits = np.array([[0.0, 5000.0, -5000.0], [5000.0, 0.0, -5000.0]])
  assert inception_score(logits, splits=1).mean == pytest.approx(2)


def test_float16_logits_are_summed_in_float64():
  logits = RANDOM.normal(size=[5000, 6]).astype(np.float16)
  assert inception_score(logits) == inception_score(logits.astype(np.float64))
