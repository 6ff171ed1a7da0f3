"""LOGAN: its update is that of the formulas, and all its steps run."""

import numpy as np
import pytest
import tensorflow as tf

import replicator
from experiments.logan import LOGAN
from models.gan.latents.distributions import (
  normal_latents,
  truncated_normal_latents,
  uniform_latents,
)
from models.gan.latents.optimization import LatentOptimization
from replicator import random
from replicator.step import context
from tests.experiments.line import BATCH, IMAGES, descend, line_gan


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


def loss_by_hand(model: LOGAN, z: tf.Tensor, real: tf.Tensor | None) -> tf.Tensor:
  """The loss of either player on the whole batch, with the gradient by z written out."""
  [v] = tf.transpose(model.discriminator.dense.kernel.value)
  w = model.generator.dense.kernel.value
  start = z
  for _ in range(2):
    fake = model.generator(z)
    score = model.discriminator(fake)
    # score = tanh(v tanh(z w + b) + c)
    inner = tf.reshape(1 - fake ** 2, [-1, 4]) * v
    g = (1 - score ** 2)[:, None] * (inner @ tf.transpose(w))
    move = 0.9 * g / (5.0 + tf.reduce_sum(g ** 2, 1, keepdims=True))
    z = tf.clip_by_value(z + move * [1.0, 1.0, 0.0], -1, 1)
  score = model.discriminator(model.generator(z))
  cost = 2.0 * tf.reduce_mean(tf.reduce_sum((z - start) ** 2, 1))
  if real is None:
    return cost - tf.reduce_mean(score)
  return cost + tf.reduce_mean(tf.nn.relu(1 + score) + tf.nn.relu(1 - model.discriminator(real)))


def test_a_step_is_that_of_the_formulas(float64):
  random.set_seed(3)
  model, other = optimized_gan(2), optimized_gan(2)
  [scalars] = replicator.Replicator().run(model, BATCH)
  with context.entered(tf.constant(0, tf.int64)):
    codes = [uniform_latents("z", [16, 3]) for _ in range(2)]
  real = tf.constant(IMAGES / 127.5 - 1.0)
  for name, z, images in zip(("discriminator", "generator"), codes, (real, None), strict=True):
    loss = descend(getattr(other, name).trainable_variables,
                   lambda z=z, images=images: loss_by_hand(other, z, images))
    np.testing.assert_allclose(scalars[name], loss, rtol=1e-12)
  for found, wanted in zip(model.trainable_variables, other.trainable_variables, strict=True):
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)
