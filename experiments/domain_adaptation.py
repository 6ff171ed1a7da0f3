"""Domain adaptation: DANN and ADDA, which classify images of an unlabeled domain.

    python -m experiments.domain_adaptation --gin_file=domain_adaptation_digits.gin

Ganin et al. 2016 (arXiv:1505.07818): gradient reversal makes features that a domain classifier
cannot tell apart. Tzeng et al. 2017 (arXiv:1702.05464): a copy of a frozen source encoder is
trained against a discriminator. Every replica has images of both domains. There are two baselines:
one trained on the source only, and one on the target with its labels, which no other network uses.
"""

from collections.abc import Callable

import replicator
from models.vision import sources  # noqa: F401  (for gin)
from models.vision.images.grid import image_grid, side_by_side
from models.vision.images.image_source import (
  ImageSource,
  read,
  to_unit_range,
  train_validation_split,
)
from models.vision.images.relabeled import with_classes
from models.vision.images.unpaired import Unpaired
from replicator import app
from replicator.errors import at_least_one

import gin
import keras
import numpy as np
import tensorflow as tf


def encoder(dropout: float) -> keras.Model:
  """Makes an encoder: images `[n, 8, 8, 1]` -> features `[n, 64]`."""
  convolutions = [keras.layers.Conv2D(filters, 3, stride, "same", activation="relu")
                  for filters, stride in ((32, 1), (64, 2))]
  return keras.Sequential([keras.Input([8, 8, 1]), *convolutions, keras.layers.Flatten(),
                           replicator.Dropout(dropout), keras.layers.Dense(64, "relu")])


def head(outputs: int) -> keras.Model:
  """Makes a head: features `[n, 64]` -> logits; a domain head (1 output) has a hidden layer."""
  hidden = [keras.layers.Dense(64, "relu")] if outputs == 1 else []
  return keras.Sequential([keras.Input([64]), *hidden, keras.layers.Dense(outputs)])


def class_loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
  """Returns the mean cross-entropy: `[n], [n, 10] -> []`."""
  return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def domain_loss(source: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
  """Returns the mean cross-entropy [] of logits `[n, 1]` that an image is from the source."""
  return tf.reduce_mean(tf.nn.softplus(-source) + tf.nn.softplus(target)) / 2.0


def reversed_gradient(x: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
  """Returns x, and multiplies its gradient by -factor."""
  factor = tf.cast(factor, x.dtype)
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
  """An update of an encoder, a classifier and a domain classifier on one loss."""

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
    return {"loss/dann": of_class, "loss/dann_domain": of_domain}


class ADDA(tf.Module):
  """An update of a feature discriminator, and one of the target encoder against it."""

  def __init__(self, optimizer: Callable[[], keras.optimizers.Optimizer], dropout: float):
    super().__init__()
    self.encoder, self.discriminator = encoder(dropout), head(1)
    self.optimizers = replicator.wrap_optimizers(
        optimizer, adda_discriminator=self.discriminator, adda_encoder=self.encoder)

  def __call__(self, features: tf.Tensor, target: tf.Tensor) -> dict[str, tf.Tensor]:
    """Makes both updates, given source features: `[n, 64], [n, 8, 8, 1]` -> scalars []."""
    discriminator = self.optimizers["adda_discriminator"].minimize(
        lambda s, t: domain_loss(self.discriminator(s), self.discriminator(
            self.encoder(t, training=True))), features, target)
    fooling = self.optimizers["adda_encoder"].minimize(lambda t: tf.reduce_mean(
        tf.nn.softplus(-self.discriminator(self.encoder(t, training=True)))), target)
    return {"loss/adda_discriminator": discriminator, "loss/adda_encoder": fooling}


@gin.configurable
class DomainAdaptation(tf.Module):
  """One training step of DANN, of ADDA and of the two baselines.

  The optimizers are made in the gin scopes `dann`, `adda_discriminator`, `adda_encoder`,
  `source_only` and `on_target`. ADDA's source encoder is that of `source_only`.

  Args:
    optimizer: makes a Keras optimizer.
    dropout: dropout rate after an encoder's last convolution.
    adaptation_start: the step at which ADDA's source encoder is frozen and its copy starts to
      train.
    reversal_steps: steps over which DANN's lambda rises toward 1 (the paper's p goes from 0 to 1).

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
    """Takes one step on examples of `Unpaired`; returns the losses of all parts, float [].

    These are `loss/source_only`, `loss/on_target`, `loss/dann` and `loss/dann_domain` (of DANN's
    two classifiers), `loss/adda_discriminator` and `loss/adda_encoder`.
    """
    source, target = (to_unit_range(batch[domain]["image"], keras.config.floatx())
                      for domain in ("source", "target"))
    labels = batch["source"]["label"]
    return {"loss/source_only": self.source_only(source, labels),
            "loss/on_target": self.on_target(target, batch["target"]["label"]),
            **self.dann(source, labels, target),
            **self.adda(self.source_only.encoder(source), target)}


def before_call(step: DomainAdaptation, number: int) -> None:
  """Freezes ADDA until it starts, then the source network, whose encoder it copies to ADDA once."""
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
  """Returns accuracies on held-out target images, such as `dann_accuracy`, and a picture."""
  networks = {name: (getattr(step, name).encoder, getattr(step, name).classifier)
              for name in ("source_only", "dann", "on_target")}
  networks["adda"] = step.adda.encoder, step.source_only.classifier
  images, labels = read(held_out, np.arange(held_out.size))
  shown = [read(each, np.arange(40) * (each.size // 40))[0] for each in (source, held_out)]
  inputs = to_unit_range(images, keras.config.floatx())
  return replicator.Evaluation(
      {f"{name}_accuracy": np.mean(np.argmax(classifier(encode(inputs)), 1) == labels)
       for name, (encode, classifier) in networks.items()},
      {"samples": side_by_side(image_grid(shown[0]), image_grid(shown[1]))},
      method=f"accuracy on {held_out.size} held-out images of the target")


@gin.configurable
def train_domain_adaptation(workdir: str, source: Callable[[], ImageSource] = gin.REQUIRED,
                            target: Callable[[], ImageSource] = gin.REQUIRED,
                            validation_split: float = 0.4) -> None:
  """Adapts from `source` to `target`, or resumes the run in `workdir`.

  The fraction `validation_split` of `target` is held out for the evaluation.

  Raises:
    UsageError: `target` has a class that `source` does not have.
  """
  labeled = source()
  unlabeled, tested = train_validation_split(with_classes(
      target(), labeled.class_names, "train_domain_adaptation.target",
      "train_domain_adaptation.source"), validation_split)
  replicator.train(DomainAdaptation, Unpaired(source=labeled, target=unlabeled),
                   lambda step: evaluate(step, labeled, tested), before_call, workdir=workdir)


if __name__ == "__main__":
  app.run(train_domain_adaptation)
