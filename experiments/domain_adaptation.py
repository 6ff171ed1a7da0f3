"""Domain adaptation: DANN and ADDA, which classify images of a domain without labels.

    python -m experiments.domain_adaptation --gin_file=domain_adaptation_digits.gin

Ganin et al. 2016 (arXiv:1505.07818): features that a domain classifier cannot tell apart, by a
reversal of its gradient. Tzeng et al. 2017 (arXiv:1702.05464): a frozen source encoder, whose copy
is trained against a discriminator. Every replica has images of both domains. Two networks are to
compare with: one trained on the source only, one on the target, whose labels no other uses.
"""

from collections.abc import Callable

import replicator
from models.vision import sources  # noqa: F401  (for gin)
from models.vision.images.grid import image_grid, side_by_side
from models.vision.images.image_source import ImageSource, hold_out, read, to_unit_range
from models.vision.images.unpaired import Unpaired
from replicator import app
from replicator.errors import at_least_one

import gin
import keras
import numpy as np
import tensorflow as tf


def encoder(dropout: float) -> keras.Model:
  """Images `[n, 8, 8, 1]` -> features `[n, 64]`."""
  convolutions = [keras.layers.Conv2D(filters, 3, stride, "same", activation="relu")
                  for filters, stride in ((32, 1), (64, 2))]
  return keras.Sequential([keras.Input([8, 8, 1]), *convolutions, keras.layers.Flatten(),
                           replicator.Dropout(dropout), keras.layers.Dense(64, "relu")])


def head(outputs: int) -> keras.Model:
  """Features `[n, 64]` -> logits, by one layer those of classes, by two that of the domain."""
  hidden = [keras.layers.Dense(64, "relu")] if outputs == 1 else []
  return keras.Sequential([keras.Input([64]), *hidden, keras.layers.Dense(outputs)])


def class_loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
  """The mean cross-entropy []: `[n], [n, 10]`."""
  return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def domain_loss(source: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
  """The mean cross-entropy [] of logits `[n, 1]` that an image is of the source."""
  return tf.reduce_mean(tf.nn.softplus(-source) + tf.nn.softplus(target)) / 2.0


def reversed_gradient(x: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
  """The identity, whose gradient is multiplied by -factor."""
  return tf.stop_gradient(x + factor * x) - factor * x


class Supervised(tf.Module):
  """An update of an encoder and a classifier on labeled images."""

  def __init__(self, optimizer: Callable[[], keras.optimizers.Optimizer], name: str,
               dropout: float):
    super().__init__()
    self.encoder, self.classifier = encoder(dropout), head(10)
    self.optimizer = replicator.wrap_optimizers(
        optimizer, **{name: [self.encoder, self.classifier]})[name]

  def __call__(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Makes an update: `[n, 8, 8, 1], [n]` -> the loss []."""
    return self.optimizer.minimize(lambda x, y: class_loss(
        y, self.classifier(self.encoder(x, training=True))), images, labels)


class DANN(tf.Module):
  """An update of an encoder, a classifier and a domain classifier, by one loss."""

  def __init__(self, optimizer: Callable[[], keras.optimizers.Optimizer], dropout: float,
               reversal_steps: int):
    super().__init__()
    self.encoder, self.classifier, self.domain = encoder(dropout), head(10), head(1)
    self.reversal_steps = reversal_steps
    self.optimizer = replicator.wrap_optimizers(
        optimizer, dann=[self.encoder, self.classifier, self.domain])["dann"]

  def __call__(self, source: tf.Tensor, labels: tf.Tensor, target: tf.Tensor
               ) -> dict[str, tf.Tensor]:
    """Makes an update: `[n, 8, 8, 1], [n], [n, 8, 8, 1]` -> scalars []."""
    progress = tf.minimum(replicator.step_number() / self.reversal_steps, 1.0)
    factor = tf.cast(2.0 / (1.0 + tf.exp(-10.0 * progress)) - 1.0, source.dtype)

    def losses(source: tf.Tensor, labels: tf.Tensor, target: tf.Tensor) -> list[tf.Tensor]:
      features = [self.encoder(images, training=True) for images in (source, target)]
      of_class = class_loss(labels, self.classifier(features[0]))
      of_domain = domain_loss(*(self.domain(reversed_gradient(x, factor)) for x in features))
      return [of_class + of_domain, of_class, of_domain]

    _, of_class, of_domain = self.optimizer.minimize(losses, source, labels, target)
    return {"dann": of_class, "dann_domain": of_domain}


class ADDA(tf.Module):
  """An update of a discriminator of features, and one of the target's encoder against it."""

  def __init__(self, optimizer: Callable[[], keras.optimizers.Optimizer], dropout: float):
    super().__init__()
    self.encoder, self.discriminator = encoder(dropout), head(1)
    self.optimizers = replicator.wrap_optimizers(
        optimizer, adda_discriminator=self.discriminator, adda_encoder=self.encoder)

  def __call__(self, features: tf.Tensor, target: tf.Tensor) -> dict[str, tf.Tensor]:
    """Makes both updates, with features of the source: `[n, 64], [n, 8, 8, 1]` -> scalars []."""
    discriminator = self.optimizers["adda_discriminator"].minimize(
        lambda s, t: domain_loss(self.discriminator(s), self.discriminator(
            self.encoder(t, training=True))), features, target)
    fooling = self.optimizers["adda_encoder"].minimize(lambda t: tf.reduce_mean(
        tf.nn.softplus(-self.discriminator(self.encoder(t, training=True)))), target)
    return {"adda_discriminator": discriminator, "adda_encoder": fooling}


@gin.configurable
class DomainAdaptation(tf.Module):
  """One training step of DANN, of ADDA and of the two networks to compare with.

  The optimizers are made in the gin scopes `dann`, `adda_discriminator`, `adda_encoder`,
  `source_only` and `on_target`. ADDA's source encoder is that of `source_only`.

  Args:
    optimizer: makes a Keras optimizer.
    dropout: the share of an encoder's last convolution that is set to 0 in training.
    adaptation_start: the step at which ADDA's source encoder is frozen and its copy begins.
    reversal_steps: in how many steps DANN's lambda rises towards 1, the paper's p from 0 to 1.

  Raises:
    UsageError: a number is below 1.
  """

  def __init__(self, optimizer: Callable[[], keras.optimizers.Optimizer] = gin.REQUIRED,
               dropout: float = 0.5, adaptation_start: int = 1000, reversal_steps: int = 4000):
    super().__init__()
    at_least_one("DomainAdaptation", adaptation_start=adaptation_start,
                 reversal_steps=reversal_steps)
    self.adaptation_start = adaptation_start
    self.dann, self.adda = DANN(optimizer, dropout, reversal_steps), ADDA(optimizer, dropout)
    self.source_only, self.on_target = (
        Supervised(optimizer, name, dropout) for name in ("source_only", "on_target"))

  def __call__(self, batch: dict[str, dict[str, tf.Tensor]]) -> dict[str, tf.Tensor]:
    """Takes one step on examples of `Unpaired`; returns the losses of all parts, float []."""
    source, target = (to_unit_range(batch[domain]["image"], keras.config.floatx())
                      for domain in ("source", "target"))
    labels = batch["source"]["label"]
    return {"source_only": self.source_only(source, labels),
            "on_target": self.on_target(target, batch["target"]["label"]),
            **self.dann(source, labels, target),
            **self.adda(self.source_only.encoder(source), target)}


def before_call(step: DomainAdaptation, number: int) -> None:
  """Freezes ADDA until it starts; then freezes the source's network, and begins with its copy."""
  has_started = number >= step.adaptation_start
  step.source_only.encoder.trainable = step.source_only.classifier.trainable = not has_started
  step.adda.encoder.trainable = step.adda.discriminator.trainable = has_started
  updates = step.adda.optimizers["adda_encoder"].keras_optimizer.iterations
  if has_started and updates.numpy() == 0:
    copy, original = step.adda.encoder, step.source_only.encoder
    for variable, value in zip(copy.variables, original.variables, strict=True):
      variable.assign(value.numpy())


def evaluate(step: DomainAdaptation, source: ImageSource, held_out: ImageSource
             ) -> replicator.Evaluation:
  """The accuracies on target images that no network saw, and a picture of both domains."""
  networks = {name: (getattr(step, name).encoder, getattr(step, name).classifier)
              for name in ("source_only", "dann", "on_target")}
  networks["adda"] = step.adda.encoder, step.source_only.classifier
  images, labels = read(held_out, np.arange(held_out.size))
  shown = [read(each, np.arange(40) * (each.size // 40))[0] for each in (source, held_out)]
  inputs = to_unit_range(images, keras.config.floatx())
  return replicator.Evaluation(
      {name: np.mean(np.argmax(classifier(encode(inputs)), 1) == labels)
       for name, (encode, classifier) in networks.items()},
      {"samples": side_by_side(image_grid(shown[0]), image_grid(shown[1]))},
      method=f"accuracy on {held_out.size} images of the target that are not trained on")


@gin.configurable
def domain_adaptation(workdir: str, source: Callable[[], ImageSource] = gin.REQUIRED,
                      target: Callable[[], ImageSource] = gin.REQUIRED,
                      held_out: float = 0.4) -> None:
  """Adapts from `source` to `target`, of which a share is held out; or resumes a run."""
  labeled = source()
  unlabeled, tested = hold_out(target(), held_out)
  replicator.train(DomainAdaptation, Unpaired(source=labeled, target=unlabeled),
                   lambda step: evaluate(step, labeled, tested), before_call, workdir=workdir)


if __name__ == "__main__":
  app.run(domain_adaptation)
