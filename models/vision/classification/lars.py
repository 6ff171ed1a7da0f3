"""LARS: layer-wise learning rates, for batches of thousands of images."""

from replicator.step.optimizers.schedules import Number

import gin
import keras
import tensorflow as tf


@gin.configurable
class LARS(keras.optimizers.SGD):
  """SGD with momentum and layer-wise adaptive rates (You et al. 2017, arXiv:1708.03888).

  The gradient g of each kernel w becomes, before momentum,

      trust |w| / (|g| + weight_decay |w|) (g + weight_decay w)

  so that a step changes every layer by about the same fraction of its norm. Vectors (biases, and
  scales and offsets of normalizations) are updated by plain SGD, and do not decay.

  Args:
    learning_rate: a number or a schedule; 10 and above, since the gradients become small.
    momentum: momentum of SGD.
    weight_decay: the factor of w in the gradient. Do not use any other weight decay.
    trust: the fraction of its norm by which a learning rate of 1 changes a layer; "eta" in the
      paper.
  """

  def __init__(self, learning_rate: Number, momentum: float = 0.9, weight_decay: float = 0.0,
               trust: float = 0.001, name: str = "lars"):
    # Not Keras' own weight decay, which is not part of the gradient.
    super().__init__(learning_rate, momentum=momentum, name=name)
    self.gradient_decay = weight_decay
    self.trust = trust

  def update_step(self, gradient: tf.Tensor, variable: tf.Variable,
                  learning_rate: tf.Tensor) -> None:
    """Updates one variable."""
    if len(variable.shape) > 1:
      gradient = self._adapted(tf.cast(gradient, variable.dtype), tf.convert_to_tensor(variable))
    super().update_step(gradient, variable, learning_rate)

  def _adapted(self, gradient: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    of_kernel, of_gradient = tf.norm(kernel), tf.norm(gradient)
    ratio = tf.math.divide_no_nan(
        self.trust * of_kernel, of_gradient + self.gradient_decay * of_kernel)
    # A kernel of zeros would never move.
    ratio = tf.where(of_kernel > 0, ratio, tf.ones_like(ratio))
    return ratio * (gradient + self.gradient_decay * kernel)
