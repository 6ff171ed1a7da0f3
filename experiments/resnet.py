"""ResNet: an image classifier.

    python -m experiments.resnet --gin_file=configs/resnet_digits.gin

He et al. 2015 (arXiv:1512.03385), trained as in Goyal et al. 2017 (arXiv:1706.02677).
"""

import functools
from collections.abc import Callable

import replicator
from models.vision import sources  # noqa: F401  (for gin)
from models.vision.augmentation.flip_and_shift import FlipAndShift  # noqa: F401  (for gin)
from models.vision.augmentation.mixup import CutMix, MixUp  # noqa: F401  (for gin)
from models.vision.builtin.digits import Digits
from models.vision.classification.lars import LARS
from models.vision.classification.resnet import ResNet
from models.vision.images.image_source import (
  ImageSource,
  read,
  to_unit_range,
  train_validation_split,
)
from models.vision.images.relabeled import with_classes
from replicator import app
from replicator.strategies import distributed_evaluation

import gin
import keras
import numpy as np
import tensorflow as tf


def cross_entropy(classes: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
  """Returns each example's cross-entropy: probabilities and logits `[n, k], [n, k] -> [n]`."""
  return tf.nn.softmax_cross_entropy_with_logits(classes, logits)


@gin.configurable(denylist=["channels", "num_classes"])
class ImageClassifier(tf.Module):
  """One training step of a classifier: one update.

  Args:
    num_classes: number of classes of the data.
    channels: 1 for gray, 3 for color images.
    optimizer: makes a Keras optimizer.
    label_smoothing: the fraction of a label that is spread evenly over all classes (Szegedy et al.
      2015, arXiv:1512.00567, section 7).
    weight_decay: adds `weight_decay / 2 |w|^2` of all kernels to the loss, so that their gradient
      gets `weight_decay w`. Biases, and the scales and offsets of normalizations, do not decay.
    augment: makes the augmentation of training images, such as `@FlipAndShift`; or None.
    mix: makes the mixing of augmented examples, `@MixUp` or `@CutMix`; or None.
    network: makes a network from num_classes and channels, whose call maps images `[n, h, w, c]`
      in [-1, 1] and `training` to logits `[n, num_classes]`; its constructor makes all variables.
    loss: the loss of each example, from class probabilities and logits:
      `[n, num_classes], [n, num_classes] -> [n]`.

  Raises:
    UsageError: the label smoothing is not in [0, 1), or the optimizer also has a weight decay.
  """

  def __init__(self, num_classes: int, channels: int,
               optimizer: Callable[[], keras.optimizers.Optimizer] = gin.REQUIRED,
               label_smoothing: float = 0.0, weight_decay: float = 0.0,
               augment: Callable[[], Callable] | None = None,
               mix: Callable[[], Callable] | None = None,
               network: Callable[[int, int], keras.Model] = ResNet,
               loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] = cross_entropy):
    super().__init__()
    if not 0 <= label_smoothing < 1:
      raise replicator.UsageError(f"ImageClassifier.label_smoothing = {label_smoothing}: must be "
                                  "in [0, 1)")
    self.num_classes = num_classes
    self.label_smoothing = label_smoothing
    self.weight_decay = weight_decay
    self.augment = augment() if augment else None
    self.mix = mix() if mix else None
    self.network = network(num_classes, channels)
    self.loss = loss
    made = optimizer()
    of_optimizer = made.gradient_decay if isinstance(made, LARS) else made.weight_decay
    if weight_decay and of_optimizer:
      raise replicator.UsageError(
          f"ImageClassifier.weight_decay = {weight_decay}: {type(made).__name__} has a "
          f"weight_decay of {of_optimizer} as well; leave out one of the two")
    self.optimizer = replicator.wrap_optimizer(made, self.network.trainable_variables)

  def __call__(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Takes one step: `{"image": uint8 [n, h, w, c], "label": int32 [n]}` -> scalars, float [].

    The scalars are `loss/network`, the mean loss with smoothed labels, and `accuracy`, the fraction
    of examples whose class has the highest logit. A mixture counts as the class with the larger
    share.
    """
    images = to_unit_range(batch["image"], keras.config.floatx())
    classes = tf.one_hot(batch["label"], self.num_classes, dtype=images.dtype)
    if self.augment is not None:
      images = self.augment(images)
    if self.mix is not None:
      images, classes = self.mix(images, classes)
    _, loss, accuracy = self.optimizer.minimize(self._losses, images, classes)
    return {"loss/network": loss, "accuracy": accuracy}

  def logits(self, images: tf.Tensor) -> tf.Tensor:
    """Returns logits of the averaged network: uint8 `[n, h, w, c] -> [n, num_classes]`.

    Without `wrap_optimizer.ema_decay`, they come from the network itself. Moving statistics of
    normalizations are never averaged.
    """
    with self.optimizer.averaged_weights():
      return self.network(to_unit_range(images, keras.config.floatx()), training=False)

  @replicator.any_batch_size
  def measure(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Measures top-1 and top-5 correctness and the cross-entropy of each example.

    The batch is like that of a step. Returns `top1` and `top5`, bool `[n]`, and `loss`, float
    `[n]`, without label smoothing.
    """
    logits = self.logits(batch["image"])
    label = tf.cast(batch["label"], tf.int32)[:, tf.newaxis]
    # If all logits were equal, `tf.math.in_top_k` would count every image as correct.
    highest = tf.math.top_k(tf.cast(logits, tf.float32), min(5, self.num_classes)).indices
    is_number = tf.reduce_all(tf.math.is_finite(logits), 1)
    return {**{f"top{k}": is_number & tf.reduce_any(highest[:, :k] == label, 1) for k in (1, 5)},
            "loss": tf.nn.sparse_softmax_cross_entropy_with_logits(batch["label"], logits)}

  def _losses(self, images: tf.Tensor, classes: tf.Tensor) -> list[tf.Tensor]:
    """Returns the loss with weight decay, the loss without it, and the accuracy; each []."""
    logits = self.network(images, training=True)
    smoothed = ((1 - self.label_smoothing) * classes
                + self.label_smoothing / self.num_classes)
    loss = tf.reduce_mean(self.loss(smoothed, logits))
    is_right = tf.equal(tf.argmax(logits, 1), tf.argmax(classes, 1))
    return [loss + self._decay(), loss, tf.reduce_mean(tf.cast(is_right, loss.dtype))]

  def _decay(self) -> tf.Tensor | float:
    if not self.weight_decay:
      return 0.0
    # tf.nn.l2_loss is half the sum of squares.
    return self.weight_decay * tf.add_n([
        tf.nn.l2_loss(v) for v in self.network.trainable_variables if len(v.shape) > 1])


class Accuracy:
  """Evaluator of a classifier on all images of a source, each counted once, on all workers."""

  on_all_workers = True

  def __init__(self, source: ImageSource, part_size: int = 250):
    self.source = source
    self._part_size = part_size

  def __call__(self, classifier: ImageClassifier) -> replicator.Evaluation:
    """Returns the means of the outputs of `ImageClassifier.measure`."""
    size = self.source.size
    parts = list(distributed_evaluation.deal(functools.partial(self._sums, classifier),
                                             -(-size // self._part_size)))
    return replicator.Evaluation(
        {name: float(sum(part[name] for part in parts)) / size for name in parts[0]},
        method=f"top-1 and top-5 accuracy on {size:,} held-out images")

  def _sums(self, classifier: ImageClassifier, part: int) -> dict[str, np.float64]:
    """Returns the sums of the outputs over the images of a part, float64 [] by name."""
    first = part * self._part_size
    images, labels = read(self.source, np.arange(first, min(first + self._part_size,
                                                            self.source.size)))
    found = classifier.measure({"image": images, "label": labels})
    return {name: np.sum(values.numpy(), dtype=np.float64) for name, values in found.items()}


@gin.configurable
def train_resnet(workdir: str, data: Callable[[], ImageSource] = Digits,
                 validation: Callable[[], ImageSource] | None = None, validation_split: float = 0.2,
                 evaluation: Callable[[ImageSource], Callable] = Accuracy) -> None:
  """Trains a classifier on `data`, or resumes the run in `workdir`.

  Args:
    workdir: the folder of the run.
    data: makes the source of the images.
    validation: makes the validation images, whose classes must be classes of `data`; None holds
      out part of `data`.
    validation_split: fraction of `data` held out for validation if there is no `validation`.
    evaluation: makes the evaluator of an `ImageClassifier` from the validation images.

  Raises:
    UsageError: `validation` has a class that `data` does not have.
  """
  source = data()
  train_on: ImageSource
  measured: ImageSource
  if validation is None:
    train_on, measured = train_validation_split(source, validation_split)
  else:
    train_on = source
    measured = with_classes(validation(), source.class_names, "train_resnet.validation",
                            "train_resnet.data")
  replicator.train(lambda: ImageClassifier(source.num_classes, source.image_shape[-1]), train_on,
                   evaluation(measured), workdir=workdir)


if __name__ == "__main__":
  app.run(train_resnet)
