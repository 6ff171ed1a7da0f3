"""Every GAN: a step makes the updates of its formulas, each of its own images, labels and latents.

No two sizes are equal, and every network depends on all that it gets. So a wrong image, label or
latent, or a wrong network, changes a loss.
"""

import functools
from collections.abc import Callable
from typing import Any

from models.gan.networks.bigbigan import LatentDistribution, PairScores
from models.vision.images.classes import Classes
from replicator import random
from replicator.step import context
from tests.experiments.line import Whole, descend, one_step
from tests.experiments.tiny_gans import GANS

import keras
import numpy as np
import pytest
import tensorflow as tf

UPDATES, SIZE, LATENT, CLASSES, RATIO, IMAGE, PIXELS = 3, 4, 5, 3, 2, (2, 3, 1), 6
_numbers = np.random.default_rng(0)
IMAGES = _numbers.integers(0, 256, [UPDATES * SIZE, *IMAGE], np.uint8)
LABELS = _numbers.integers(0, CLASSES, UPDATES * SIZE, np.int32)

mean = tf.reduce_mean


class Faded:
  """An augmentation, which remembers the scores that it observes."""

  def __init__(self):
    self.observed = []

  def __call__(self, images):
    return 0.5 * images + 0.2

  def observe(self, scores):
    self.observed.append(scores)


def moved(score: Callable[[tf.Tensor], tf.Tensor], z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """Latents of a latent optimization, and its cost."""
  return z + 0.3 * score(z)[:, tf.newaxis], 0.2 * mean(score(z))


def products(scores) -> tf.Tensor:
  """A penalty that depends on which sample stands beside which image."""
  return mean(scores.real * scores.fake)


RATIOS = {"discriminator_updates": UPDATES, "generator_batch_ratio": RATIO}
OPTIONS = {
    "sngan": RATIOS, "bigan": RATIOS, "r3gan": {"augment": Faded},
    "gan": {**RATIOS, "augment": Faded, "penalties": [products], "generator_orthogonality": 0.1},
    "logan": {"discriminator_updates": UPDATES, "optimization": lambda: moved},
    "bigbigan": {"discriminator_updates": UPDATES}}


def build(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
  """A step with networks of one layer, and plain gradient descent."""
  keras.utils.set_random_seed(0)
  options = {"latent_dim": LATENT, "optimizer": lambda: keras.optimizers.SGD(0.5), **OPTIONS[name]}
  networks = {"generator": lambda *_, **__: Whole(LATENT + 1, IMAGE),
              "discriminator": lambda *_, **__: Whole(PIXELS + 1, ()),
              "encoder": lambda *_, **__: Whole(PIXELS, (LATENT,))}
  if name == "bigbigan":
    return GANS[name].step(
        IMAGE, generator=lambda *_: Whole(LATENT, IMAGE), discriminator=lambda *_: Whole(
            PIXELS + LATENT, (3,), lambda x: PairScores(*tf.unstack(x, axis=1))),
        encoder=lambda *_: Whole(PIXELS, (2, LATENT), lambda x: LatentDistribution(
            x[:, 0], tf.exp(x[:, 1]))), **options)
  if name == "bigan":
    networks["discriminator"] = lambda *_, **__: Whole(PIXELS + 1 + LATENT, ())
  if name in ("sngan", "bigan"):  # They have networks of their own.
    for network, made in zip(("SNGANGenerator", "SNGANDiscriminator", "Encoder"),
                             networks.values(), strict=True):
      monkeypatch.setattr(f"experiments.{name}.{network}", made)
    networks = {}
  elif name != "gan":
    del networks["encoder"]
  step = GANS[name].step(IMAGE, Classes.numbered(CLASSES), conditional=True, **networks, **options)
  if name == "r3gan":
    assert [penalty.name for penalty in step.penalties] == ["r1", "r2"]
    step.penalties = [products]
  return step


# ---- The formulas -------------------------------------------------------------------------------

# Images x and their labels y; latents z, and labels k for samples.


def scores(name: str, step: Any) -> tuple[Callable, Callable]:
  """Functions that score images, `(x, y)`, and samples, `(z, k)`; BigBiGAN's give three scores."""
  d, g = step.discriminator, step.generator
  if name == "bigan":
    return lambda x, y: d(x, y, step.encoder(x)), lambda z, k: d(g(z, k), k, z)
  if name == "bigbigan":
    noise = lambda: random.normal("code", [SIZE, LATENT])
    latent = lambda latents: latents.mean + latents.scale * noise()
    return lambda x, y: d(x, latent(step.encoder(x))), lambda z, k: d(g(z), z)
  seen = (lambda x: 0.5 * x + 0.2) if "augment" in OPTIONS[name] else lambda x: x
  return lambda x, y: d(seen(x), y), lambda z, k: d(seen(g(z, k)), k)


def loss_by_hand(name: str, step: Any, network: str, x, y, z, k) -> tuple:
  """The loss of a network; and where images and samples are compared, the scores of both."""
  of_images, of_samples = scores(name, step)
  if network == "encoder" and name in ("bigan", "bigbigan"):
    return (mean(sum(tf.nest.flatten(of_images(x, y)))),)
  if network == "encoder":
    return (mean((step.encoder(step.generator(z, k)) - z) ** 2),)
  cost = 0.0
  if name == "logan":
    z, cost = moved(lambda z: of_samples(z, k), z)
  fake = tf.nest.flatten(of_samples(z, y if name == "r3gan" else k))
  if network == "generator" and name != "r3gan":
    if name == "gan":
      w = step.generator.dense.kernel.value
      pairs = (tf.transpose(w) @ w) ** 2
      cost = 0.1 * (tf.reduce_sum(pairs) - tf.linalg.trace(pairs)) / 2
    return (cost - mean(sum(fake)),)
  real = tf.nest.flatten(of_images(x, y))
  if name == "r3gan":
    gap = fake[0] - real[0] if network == "discriminator" else real[0] - fake[0]
    loss = mean(tf.math.log(1 + tf.exp(gap)))
  else:
    loss = cost + sum(mean(tf.maximum(1 - r, 0)) + mean(tf.maximum(1 + f, 0))
                      for r, f in zip(real, fake, strict=True))
  if network == "discriminator" and "augment" in OPTIONS[name]:
    loss += mean(real[0] * fake[0])
  return loss, real[0], fake[0]


# ---- A step -------------------------------------------------------------------------------------


def step_by_hand(name: str, step: Any) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
  """Makes the updates of a step one after another: its scalars, and all scores of images."""
  found, real_scores = {}, []
  parts = 2 if name == "r3gan" else UPDATES

  def update(network: str, part: int, ratio: int = 1) -> None:
    n = ratio * UPDATES * SIZE // parts
    draw = functools.partial(random.uniform, minval=-1) if name == "logan" else random.normal
    z = draw("z", [n, LATENT])
    k = random.uniform("label", [n], 0, CLASSES, tf.int32)
    compared: list[tf.Tensor] = []

    def loss():
      nonlocal compared
      loss, *compared = loss_by_hand(name, step, network, IMAGES[part::parts] / 127.5 - 1,
                                     LABELS[part::parts], z, k)
      return loss

    found[f"loss/{network}"] = descend(getattr(step, network).trainable_variables, loss)
    if network == "discriminator":
      real, fake = compared
      real_scores.append(real)
      found["d_accuracy"] = np.mean(real > fake if name == "r3gan" else [real > 0, fake < 0])

  with context.entered(tf.constant(0, tf.int64)):
    for part in range(1 if name == "r3gan" else UPDATES):
      update("discriminator", part)
    update("generator", parts - 1, OPTIONS[name].get("generator_batch_ratio", 1))
    if hasattr(step, "encoder"):
      update("encoder", parts - 1)
  return found, real_scores


@pytest.mark.parametrize("name", GANS)
def test_a_step_makes_the_updates_of_its_formulas(name, float64, monkeypatch):
  step, other = (build(name, monkeypatch) for _ in range(2))
  scalars = one_step(step, {"image": tf.constant(IMAGES), "label": tf.constant(LABELS)})
  assert sum(part.untrained for part in vars(step).values() if isinstance(part, Whole)) == 0
  expected, real_scores = step_by_hand(name, other)
  for key, value in expected.items():
    np.testing.assert_allclose(scalars[key], value, rtol=1e-10, err_msg=key)
  for found, wanted in zip(step.trainable_variables, other.trainable_variables, strict=True):
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)
  if "augment" in OPTIONS[name]:
    np.testing.assert_allclose(step.augment.observed, real_scores, rtol=1e-10)
