"""ACGAN's discriminator, which scores and classifies images (Odena et al. 2017)."""

from collections.abc import Callable

from replicator import UsageError

import gin
import keras
import tensorflow as tf


@gin.configurable
class ACGANDiscriminator(keras.Model):
  """A discriminator that scores and classifies: `[n, h, w, c] -> [n], [n, num_classes]`.

  Both outputs are linear in the features of a network that sees no labels (Odena et al. 2017,
  arXiv:1610.09585, section 3). `@classification()` trains the classifier, and
  `GAN.generator_classification` trains the generator against it. Logits are float32 (float64 under
  its policy).

  Args:
    resolution: height and width of the images, in pixels; `network` must support it.
    channels: 1 for gray, 3 for color images.
    num_classes: the number of classes.
    network: makes the network, such as `@DCGANDiscriminator`, which has `features`, `num_features`
      and the layer `linear`.

  Raises:
    UsageError: there are fewer than two classes, or `network` raises one.
  """

  def __init__(self, resolution: int, channels: int = 3, num_classes: int = 0,
               network: Callable[..., keras.Model] = gin.REQUIRED):
    super().__init__(autocast=False)
    if num_classes < 2:
      raise UsageError(f"ACGANDiscriminator.num_classes = {num_classes}: there is nothing to "
                       "classify; set GAN.conditional = True, and use data with classes")
    self.num_classes = num_classes
    self.network = network(resolution=resolution, channels=channels, num_classes=0)
    self.num_features = self.network.num_features
    self.classifier = keras.layers.Dense(num_classes, dtype=self.variable_dtype)
    self.classifier.build((None, self.num_features))
    self.built = True

  def call(self, images: tf.Tensor, labels: tf.Tensor | None = None, training: bool = False
           ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns scores `[n]` and logits `[n, num_classes]` of images; `labels` have no effect."""
    features = self.network.features(images, training)
    return self.network.linear(features)[:, 0], self.classifier(features)
