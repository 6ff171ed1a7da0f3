"""Scores of a batch, from one discriminator call for its loss and all penalties."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import replicator
from replicator import UsageError
from replicator.step.layers.inspection import layers_of, operations_without_gradient

import keras
import tensorflow as tf

# With these, the score of one image depends on the others in its batch.
_MIXING = (replicator.GlobalBatchNorm, keras.layers.BatchNormalization)
# The second derivatives of these are wrong: they call tf.nn.moments.
_WRONG_TWICE = (keras.layers.LayerNormalization, keras.layers.GroupNormalization)
# These draw for each row of a batch, but here two batches are concatenated.
_DRAWING = (replicator.Dropout, keras.layers.Dropout)


class Scores:
  """The scores of real and generated images, from one call of the discriminator.

  With one call, both use the same singular vectors of `SpectralNorm`. A discriminator with batch
  normalization scores images and samples in two calls, as in the public code of Radford et al. 2015
  (arXiv:1511.06434): the generator's update scores samples only, so samples must not share
  statistics with images here. Create it inside the loss, where the optimizer's tape is recording,
  so that penalties are differentiated with the loss:

      def loss(images, fakes):
        scores = Scores(discriminator, images, fakes)
        return adversarial.discriminator(scores.real, scores.fake) + penalty(scores)

      loss, gradients = optimizer.loss_and_gradients(loss, images, fakes)

  Args:
    discriminator: `(images, labels, training) -> scores [n]`, or a pair of scores and class logits
      as from `ACGANDiscriminator`. Pass the network itself, so that it can be checked.
    real_images: floating [n, h, w, c].
    fake_images: floating [m, h, w, c]; they get the dtype of the real ones.
    real_labels: int32 [n], or None.
    fake_labels: int32 [m], or None.
    augment: the augmentation of the discriminator's inputs, or None. It is called once for real
      images and once for generated ones, because its draws are per row.

  Attributes:
    real: the scores of the real images, [n].
    fake: the scores of the generated images, [m].
    real_logits: the logits of the real images, [n, num_classes], or None.
    fake_logits: the logits of the generated images, [m, num_classes], or None.
    real_seen: the real images after `augment`.
    fake_seen: the generated images after `augment`.

  Raises:
    UsageError: the discriminator has dropout. For gradients and `again`: it has batch
      normalization, or lacks correct second derivatives.
  """

  def __init__(self, discriminator: Callable[..., tf.Tensor], real_images: tf.Tensor,
               fake_images: tf.Tensor, real_labels: tf.Tensor | None = None,
               fake_labels: tf.Tensor | None = None,
               augment: Callable[[tf.Tensor], tf.Tensor] | None = None):
    _refuse(discriminator, _DRAWING, "draws random numbers for each row of its batch, but real and "
            "generated images are scored as one batch, whose rows depend on the number of "
            "replicas; use a discriminator without it")
    self.discriminator = discriminator
    fake_images = tf.cast(fake_images, real_images.dtype)
    self.real_images, self.fake_images = real_images, fake_images
    self.real_labels, self.fake_labels = real_labels, fake_labels
    # Each penalty may need the gradients in a separate graph.
    with tf.GradientTape(watch_accessed_variables=False, persistent=True) as self._tape:
      self._tape.watch([real_images, fake_images])
      self.real_seen, self.fake_seen = (
          augment(images) if augment else images for images in (real_images, fake_images))
      (self.real, self.real_logits), (self.fake, self.fake_logits) = _judge(
          discriminator, [self.real_seen, self.fake_seen], [real_labels, fake_labels])
    self._gradients: dict[int, list[tf.Tensor]] = {}

  @property
  def gradients(self) -> list[tf.Tensor]:
    """Gradients of the scores with respect to real and generated images, before augmentation.

    `[n, h, w, c]` and `[m, h, w, c]`. They are computed on first use, once for all penalties, and
    again for a penalty that skips steps, because it uses them in a branch.

    Raises:
      UsageError: the discriminator has batch normalization, or lacks correct second derivatives.
    """
    graph = 0 if tf.executing_eagerly() else id(tf.compat.v1.get_default_graph())
    if graph not in self._gradients:
      with _second_derivatives_checked(self.discriminator):
        # Each score depends only on its own image, so the sum's gradient contains all gradients.
        self._gradients[graph] = self._tape.gradient(
            [self.real, self.fake], [self.real_images, self.fake_images])
    return self._gradients[graph]

  def again(self, images: tf.Tensor, labels: tf.Tensor | None) -> tf.Tensor:
    """Scores more images `[n]`, with `training=False`, so that no state changes.

    It may be called in a branch, and by only some micro-batches and replicas.

    Raises:
      UsageError: the discriminator has batch normalization, whose statistics differ without
        training.
    """
    _refuse_mixing(self.discriminator)
    return scores_and_logits(self.discriminator(images, labels, training=False))[0]

  def gradient_at(self, images: tf.Tensor, labels: tf.Tensor | None) -> tf.Tensor:
    """Returns the gradients of `again(images, labels)` with respect to images, `[n, h, w, c]`.

    Raises:
      UsageError: as for `gradients`.
    """
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch(images)
      scores = self.again(images, labels)
    with _second_derivatives_checked(self.discriminator):
      return tape.gradient(scores, images)


def scores_and_logits(outputs: Any) -> tuple[tf.Tensor, tf.Tensor | None]:
  """Returns a discriminator's outputs as a pair; logits are None if it returns only scores."""
  return outputs if isinstance(outputs, tuple) else (outputs, None)


def _judge(discriminator: Callable[..., tf.Tensor], images: Sequence[tf.Tensor],
           labels: Sequence[tf.Tensor | None]) -> list[tuple[tf.Tensor, tf.Tensor | None]]:
  """Returns scores, and logits if there are any, for each of two batches."""
  if layers_of(discriminator, _MIXING):
    return [scores_and_logits(discriminator(*batch, training=True))
            for batch in zip(images, labels, strict=True)]
  scores, logits = scores_and_logits(discriminator(
      tf.concat(images, 0), None if labels[0] is None else tf.concat(labels, 0), training=True))
  sizes = [batch.shape[0] for batch in images]
  return list(zip(tf.split(scores, sizes),
                  [None, None] if logits is None else tf.split(logits, sizes), strict=True))


@contextlib.contextmanager
def _second_derivatives_checked(network: Callable) -> Iterator[None]:
  """Checks that a gradient with respect to images, computed inside, can be differentiated again."""
  _refuse_mixing(network)
  check_second_derivatives(network, "a penalty on gradients")
  with operations_without_gradient() as without:
    yield
  if without:
    raise UsageError(f"{_name(network)}: a penalty needs its second derivatives, but TensorFlow "
                     f"does not have those of {', '.join(sorted(without))}; replace the layer that "
                     "uses it, or drop the penalty")


def check_second_derivatives(network: Callable, what: str) -> None:
  """Raises a UsageError if a network has a layer whose second derivatives are wrong.

  `what` names the feature that needs them, for the message.
  """
  _refuse(network, _WRONG_TWICE, f"has wrong second derivatives in TensorFlow, which {what} needs; "
          "use models.gan.networks.normalization.LayerNorm")


def _refuse_mixing(discriminator: Any) -> None:
  _refuse(discriminator, _MIXING, "makes the score of an image depend on the rest of the batch, so "
          "a penalty on its gradient or its change is wrong; use a discriminator without it, or "
          "drop the penalty")


def _refuse(discriminator: Any, kinds: tuple[type, ...], why: str) -> None:
  """Raises a `UsageError` if a network has a layer of one of these kinds."""
  for layer in layers_of(discriminator, kinds)[:1]:
    raise UsageError(f"{_name(discriminator)}: its layer '{layer.name}' ({type(layer).__name__}) "
                     f"{why}")


def _name(discriminator: Any) -> str:
  return getattr(discriminator, "name", "the discriminator")
