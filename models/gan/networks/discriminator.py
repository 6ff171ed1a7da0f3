"""The base class of image discriminators."""

from models.gan.networks.building import call_chain, check_images, check_labels

import keras
import tensorflow as tf


class Discriminator(keras.Model):
  """A discriminator that scores images by features h: `[n, h, w, c] -> [n]`.

  The score is `<v, h>`; with classes, plus `<embedding(label), h>`, the projection of Miyato and
  Koyama 2018 (arXiv:1802.05637), equation 3. From h on it computes in float32 (float64 under its
  policy), even if earlier layers have a lower precision.

  A subclass makes the layers of `chain`; `num_features`, the length of h; the layer `linear` of h;
  and with classes the layer `embedding` of one-hot rows `[n, num_classes]`.

  Args:
    image_shape: (height, width, channels) of the images.
    num_classes: 0 for a discriminator that ignores labels.

  Raises:
    UsageError: images have a different size, or labels are missing.
  """

  def __init__(self, image_shape: tuple[int, int, int], num_classes: int, name: str | None = None):
    super().__init__(autocast=False, name=name)
    self.image_shape = image_shape
    self.num_classes = num_classes

  def call(self, images: tf.Tensor, labels: tf.Tensor | None = None,
           training: bool = False) -> tf.Tensor:
    """Scores images `[n]`; without classes, `labels [n]` are ignored.

    Each training call advances the estimated singular vectors by one power iteration.
    """
    check_labels(type(self).__name__, self.num_classes, labels)
    return self.score(self.features(images, training), labels)

  def features(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
    """Returns features h `[n, num_features]` of images."""
    check_images(type(self).__name__, self.image_shape, images)
    return self.pooled(call_chain(self.chain(), images, training=training))

  def chain(self) -> list[keras.layers.Layer]:
    """Returns the layers from images to the last map."""
    return self.trunk

  def pooled(self, x: tf.Tensor) -> tf.Tensor:
    """Sums the last map over positions after a ReLU: `[n, h, w, c] -> [n, c]`."""
    return tf.reduce_sum(tf.cast(tf.nn.relu(x), self.variable_dtype), axis=[1, 2])

  def score(self, features: tf.Tensor, labels: tf.Tensor | None) -> tf.Tensor:
    """Computes scores `[n]` from features and labels."""
    scores = self.linear(features)[:, 0]
    if self.num_classes:
      one_hot = tf.one_hot(labels, self.num_classes, dtype=features.dtype)
      scores += tf.reduce_sum(self.embedding(one_hot) * features, axis=1)
    return scores
