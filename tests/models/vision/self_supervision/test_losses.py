"""Self-supervised losses: their formulas and gradients, on one replica and on several."""

from benchmarks import self_supervision_gradients as closed_forms
from models.vision.self_supervision import losses

import numpy as np
import pytest

VIEWS, TARGETS = closed_forms.projections()
LOSSES = pytest.mark.parametrize("make", closed_forms.FORMULAS, ids=lambda make: make.__name__)


@LOSSES
def test_a_loss_and_its_gradient_are_the_closed_form_of_the_batch_of_all_replicas(make, float64):
  loss, gradient = closed_forms.FORMULAS[make](VIEWS, TARGETS)
  found = closed_forms.gradient(make, VIEWS, TARGETS, replicas=2)
  np.testing.assert_allclose(found[0], loss, rtol=1e-9)
  np.testing.assert_allclose(found[1], gradient, rtol=1e-9, atol=1e-12)


def test_an_in_place_all_reduce_gives_a_part_of_the_gradient(float64):
  _, gradient = closed_forms.barlow_twins(VIEWS, TARGETS)
  _, found = closed_forms.gradient(losses.BarlowTwins, VIEWS, TARGETS, 2,
                                   closed_forms.without_gradient)
  np.testing.assert_allclose(found, gradient / 2, rtol=1e-9, atol=1e-12)
