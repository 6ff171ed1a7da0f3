"""Inception scores that are known, and the reference's permutation."""

from models.metrics.distances.inception_score import inception_score

import numpy as np
import pytest

RANDOM = np.random.default_rng(0)


def test_a_class_that_no_image_can_show_is_no_nan():
  logits = np.array([[0.0, 5000.0, -5000.0], [5000.0, 0.0, -5000.0]])
  assert inception_score(logits, splits=1).mean == pytest.approx(2)


def test_float16_logits_are_summed_in_float64():
  logits = RANDOM.normal(size=[5000, 6]).astype(np.float16)
  assert inception_score(logits) == inception_score(logits.astype(np.float64))
