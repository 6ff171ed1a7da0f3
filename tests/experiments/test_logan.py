"""LOGAN: its update is that of the formulas, and all its steps run."""

import pytest
import tensorflow as tf

import replicator
from experiments.logan import LOGAN
from models.gan.latents.distributions import (
  normal_latents,
  truncated_normal_latents,
)
from models.gan.latents.optimization import LatentOptimization
from replicator.step import context
from tests.experiments.line import BATCH, line_gan


def optimized_gan(steps: int) -> LOGAN:
  return line_gan(LOGAN, optimization=lambda: LatentOptimization(steps, weight=2.0),
                  discriminator_updates=1)


@pytest.mark.parametrize("latents", [normal_latents, truncated_normal_latents])
def test_codes_that_would_be_clipped_where_they_do_not_move_are_refused(latents):
  with pytest.raises(replicator.UsageError, match=(
      rf"LOGAN.latents = @{latents.__name__}: .* must be uniform there; write LOGAN.lat")):
    line_gan(LOGAN, latents=latents)


@pytest.mark.parametrize("steps", [0, 3])
def test_each_update_scores_its_codes_once_for_each_step(steps, float64):
  model = optimized_gan(steps)
  with context.entered(tf.constant(0, tf.int64)):  # Line by line, so that calls can be counted.
    model({name: tf.constant(value) for name, value in BATCH.items()})
  assert (model.generator.calls, model.discriminator.calls) == (2 * (steps + 1),) * 2
