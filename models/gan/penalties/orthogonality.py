"""Orthogonal regularization of kernels: Brock et al. 2019 (arXiv:1809.11096), section 3.1."""

from models.gan.penalties.penalty import Penalty
from replicator.step.layers.inspection import kernel_matrix, layers_of
from replicator.step.optimizers.schedules import Number

import gin
import keras
import tensorflow as tf


@gin.configurable
def orthogonality(weight: Number = 1e-4, every: int = 1) -> Penalty:
  """Makes the penalty weight `products_of_filters(discriminator)`.

  Args:
    weight: the paper's beta.
    every: steps between computations of the penalty; see `Penalty`.
  """
  return Penalty("orthogonality", lambda scores: products_of_filters(scores.discriminator), weight,
                 every)


def products_of_filters(network: keras.layers.Layer) -> tf.Tensor:
  """Returns half the sum of squared products of all pairs of different filters, over all kernels.

  A kernel is a matrix W with a row for each output, as for `SpectralNorm`. This is
  |W W^T (1 - I)|^2 / 2, elementwise, a scalar whose gradient is 2 (W W^T (1 - I)) W, as in the
  authors' code. Equation 3 of the paper has no half, so its gradient has a 4. Embeddings, biases
  and gains are excluded.

  Raises:
    UsageError: the network has an EinsumDense, as in Keras' attention layers.
  """
  # Layers come before their sublayers, so the last owner is the layer that made the kernel.
  owners = {id(kernel): (layer, kernel) for layer in layers_of(network, (keras.layers.Layer,))
            for kernel in layer.trainable_variables if kernel.name == "kernel"}
  return tf.add_n([_of_matrix(kernel_matrix(layer, tf.convert_to_tensor(kernel.value)))
                   for layer, kernel in owners.values()])


def _of_matrix(columns: tf.Tensor) -> tf.Tensor:
  products = tf.matmul(columns, columns, transpose_a=True)
  different = tf.linalg.set_diag(products, tf.zeros_like(products[0]))
  return tf.reduce_sum(tf.square(different)) / 2
