"""CycleGAN: translation between two image domains, learned without pairs.

    python -m experiments.cyclegan --gin_file=cyclegan_shapes16.gin

Zhu et al. 2017 (arXiv:1703.10593): equation 3 with the least-squares loss of section 4, and the
identity loss of section 5.2. Both generators share one optimizer, and both discriminators another.
"""

from collections.abc import Callable
from typing import Any

import replicator
from models.gan import gans
from models.gan.networks.cyclegan import CycleGANGenerator, PatchDiscriminator
from models.vision.builtin.shapes import Shapes
from models.vision.classification import small_classifier
from models.vision.images import grid, image_source
from models.vision.images.image_source import (
  ImageSource,
  Subset,
  read,
  to_unit_range,
  train_validation_split,
)
from models.vision.images.unpaired import Unpaired
from replicator import app
from replicator.errors import at_least_one

import gin
import keras
import numpy as np
import tensorflow as tf


@gin.configurable(denylist=["image_shape"])
class CycleGAN(tf.Module):
  """One training step: an update of both generators, and one of both discriminators.

  The two optimizers are made in the gin scopes `generators` and `discriminators`.

  Args:
    image_shape: (height, width, channels) of the images of both domains, a and b.
    optimizer: makes a Keras optimizer.
    generator: makes each generator from resolution and channels, like `CycleGANGenerator`.
    discriminator: makes each discriminator from the same arguments, like `PatchDiscriminator`.
    cycle_weight: the weight of the cycle loss, lambda in equation 3.
    identity_weight: the weight of the identity loss.
    pool_size: number of generated images stored per domain (section 4).

  Raises:
    UsageError: a weight is negative, or the pool is empty.
  """

  def __init__(self, image_shape: tuple[int, int, int],
               optimizer: Callable[[], keras.optimizers.Optimizer] = gin.REQUIRED,
               generator: Callable[..., Any] = CycleGANGenerator,
               discriminator: Callable[..., Any] = PatchDiscriminator, cycle_weight: float = 10.0,
               identity_weight: float = 5.0, pool_size: int = 50):
    super().__init__()
    at_least_one("CycleGAN", pool_size=pool_size)
    for name, weight in ("cycle", cycle_weight), ("identity", identity_weight):
      if weight < 0:
        raise replicator.UsageError(f"CycleGAN.{name}_weight = {weight}: must not be negative")
    shape = {"resolution": image_shape[0], "channels": image_shape[2]}
    self.cycle_weight = cycle_weight
    self.identity_weight = identity_weight
    self.to_a, self.to_b = generator(**shape), generator(**shape)
    self.is_a, self.is_b = discriminator(**shape), discriminator(**shape)
    self.pool_a, self.pool_b = (replicator.ExamplePool(pool_size, image_shape) for _ in range(2))
    self.optimizers = replicator.wrap_optimizers(
        optimizer, generators=[self.to_a, self.to_b], discriminators=[self.is_a, self.is_b])

  def __call__(self, batch: dict[str, dict[str, tf.Tensor]]) -> dict[str, tf.Tensor]:
    """Takes one step: `{"a": {"image": uint8 [n, h, w, c]}, "b": {...}}` -> scalars, float [].

    The scalars are `loss/generators` and `loss/discriminators`, the losses of the two optimizers,
    and the unweighted terms of the former: `loss/adversarial`, `loss/cycle` and `loss/identity`.
    """
    a, b = (to_unit_range(batch[name]["image"], keras.config.floatx()) for name in "ab")
    fake_a, fake_b = self.to_a(b, training=True), self.to_b(a, training=True)
    generators, adversarial, cycle, identity = self.optimizers["generators"].minimize(
        self._generator_loss, a, b)
    discriminators = self.optimizers["discriminators"].minimize(
        self._discriminator_loss, a, b, self.pool_a.exchange(fake_a), self.pool_b.exchange(fake_b))
    return {"loss/generators": generators, "loss/discriminators": discriminators,
            "loss/adversarial": adversarial, "loss/cycle": cycle, "loss/identity": identity}

  def _generator_loss(self, a: tf.Tensor, b: tf.Tensor) -> tuple[tf.Tensor, ...]:
    fake_a, fake_b = self.to_a(b, training=True), self.to_b(a, training=True)
    adversarial = (_squares(self.is_a(fake_a, training=True) - 1.0)
                   + _squares(self.is_b(fake_b, training=True) - 1.0))
    cycle = (_distance(self.to_a(fake_b, training=True), a)
             + _distance(self.to_b(fake_a, training=True), b))
    identity = (_distance(self.to_a(a, training=True), a)
                + _distance(self.to_b(b, training=True), b))
    return (adversarial + self.cycle_weight * cycle + self.identity_weight * identity,
            adversarial, cycle, identity)

  def _discriminator_loss(self, a: tf.Tensor, b: tf.Tensor, fake_a: tf.Tensor, fake_b: tf.Tensor
                          ) -> tf.Tensor:
    # Halved, so that the discriminators learn more slowly than the generators (section 4).
    return 0.5 * sum(
        _squares(network(real, training=True) - 1.0) + _squares(network(fake, training=True))
        for network, real, fake in ((self.is_a, a, fake_a), (self.is_b, b, fake_b)))

  @replicator.any_batch_size
  def translate(self, a: tf.Tensor, b: tf.Tensor) -> dict[str, tf.Tensor]:
    """Translates images both ways and back: two uint8 `[n, h, w, c]` -> four of the same shape.

    Each is named after its path between the domains: `ab`, `aba`, `ba` and `bab`.
    """
    def through(network: keras.Model, images: tf.Tensor) -> tf.Tensor:
      images = to_unit_range(images, keras.config.floatx())
      return image_source.to_uint8(network(images, training=False))
    with self.optimizers["generators"].averaged_weights():
      ab, ba = through(self.to_b, a), through(self.to_a, b)
      return {"ab": ab, "aba": through(self.to_a, ab), "ba": ba, "bab": through(self.to_b, ba)}


def _squares(x: tf.Tensor) -> tf.Tensor:
  return tf.reduce_mean(tf.square(x))


def _distance(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  return tf.reduce_mean(tf.abs(x - y))


def _psnr(x: np.ndarray, y: np.ndarray) -> float:
  return float(tf.reduce_mean(tf.image.psnr(x, y, 255)))


class Evaluator:
  """Evaluator of translations of held-out images.

  If both domains have the same classes, a classifier trained on each domain classifies images
  before and after translation into it: `untranslated_accuracy_ab` and `accuracy_ab`. If images are
  paired, `psnr_ab` compares translations with the truth, and `untranslated_psnr` is the baseline.
  """

  def __init__(self, trained: list[ImageSource], measured: list[ImageSource], folder: str,
               paired: bool):
    self.trained, self.measured, self.folder, self.paired = trained, measured, folder, paired
    a, b = (source.class_names for source in trained)
    self.has_classes = a == b and len(a) > 1

  def __call__(self, step: CycleGAN) -> replicator.Evaluation:
    """Returns the metrics, and a picture with rows of inputs, translations, truths, round trips."""
    count = min(source.size for source in self.measured)
    (a, labels_a), (b, labels_b) = (read(source, np.arange(count)) for source in self.measured)
    made = {way: images.numpy() for way, images in step.translate(a, b).items()}
    scalars, rows = {"untranslated_psnr": _psnr(a, b)} if self.paired else {}, []
    for way, images, labels, truth, target in (("ab", a, labels_a, b, self.trained[1]),
                                               ("ba", b, labels_b, a, self.trained[0])):
      if self.has_classes:
        classifier = small_classifier.load_or_train(target, f"{self.folder}/{way[1]}")
        for name, read_by_it in ("", made[way]), ("untranslated_", images):
          is_right = classifier(read_by_it)[1].argmax(1) == labels
          scalars[f"{name}accuracy_{way}"] = float(np.mean(is_right))
      if self.paired:
        scalars[f"psnr_{way}"] = _psnr(made[way], truth)
      rows += [images, made[way], *([truth] if self.paired else []), made[way + way[0]]]
    shown = np.arange(12) * count // 12
    return replicator.Evaluation(
        scalars, {"samples": grid.image_grid(np.concatenate([row[shown] for row in rows]), 12)},
        f"translations of {count} held-out images of each domain")


@gin.configurable
def train_cyclegan(workdir: str, a: Callable[[], ImageSource] = Shapes,
                   b: Callable[[], ImageSource] = gin.REQUIRED, validation_split: float = 0.1,
                   paired: bool = False) -> None:
  """Trains CycleGAN between two sources, or resumes the run in `workdir`.

  Args:
    workdir: the folder of the run.
    a: makes the images of one domain.
    b: makes the images of the other.
    validation_split: fraction of each domain held out for the evaluation.
    paired: whether image i of a and of b show the same thing, for exact metrics. Training then uses
      one half of the remaining images of a and the other half of those of b, so it sees no pairs.

  Raises:
    UsageError: the two domains differ in image shape or, if paired, in size.
  """
  both = a(), b()
  for name in ("image_shape", *(["size"] if paired else [])):
    of_a, of_b = (getattr(source, name) for source in both)
    if of_a != of_b:
      raise replicator.UsageError(f"train_cyclegan.a has {name} {of_a}, and train_cyclegan.b "
                                  f"{of_b}: they must be the same")
  gans.check_square(both[0])
  alike = np.zeros(both[0].size, int) if paired else None  # Same split, regardless of classes.
  trained, measured = map(list, zip(*(train_validation_split(source, validation_split,
                                                             alike) for source in both),
                                    strict=True))
  if paired:
    half = np.arange(trained[0].size // 2)
    trained = [Subset(trained[0], half), Subset(trained[1], half + len(half))]
  replicator.train(lambda: CycleGAN(both[0].image_shape), Unpaired(a=trained[0], b=trained[1]),
                   Evaluator(trained, measured, f"{workdir}/classifiers", paired),
                   workdir=workdir)


if __name__ == "__main__":
  app.run(train_cyclegan)
