"""The MLPs of a world model, and of the policy and critic that learn in it."""

from models.rl.networks.actor_critic import Trained

import gin
import keras
import tensorflow as tf


@gin.configurable(denylist=["inputs", "outputs", "scale"])
class NormalizedMLP(Trained):
  """An MLP: layers of Dense, LayerNormalization and SiLU, and a last Dense layer.

  Args:
    inputs: length of an input.
    outputs: number of outputs.
    scale: factor on the variance of the last layer's initial kernel; 0 for zeros.
    units: units of a hidden layer.
    layers: number of hidden layers.
  """

  def __init__(self, inputs: int, outputs: int, scale: float = 1.0, units: int = 64,
               layers: int = 2):
    super().__init__()
    last = keras.initializers.VarianceScaling(scale) if scale else "zeros"
    hidden = [layer for _ in range(layers) for layer in normalized(units)]
    self.network = keras.Sequential(
        [*hidden, keras.layers.Dense(outputs, kernel_initializer=last)])
    self.network.build((None, inputs))

  def __call__(self, inputs: tf.Tensor) -> tf.Tensor:
    """Returns the outputs: `[..., inputs] -> [..., outputs]`, floatx."""
    rows = self.network(tf.reshape(inputs, [-1, inputs.shape[-1]]))
    outputs = tf.reshape(rows, [-1, *inputs.shape[1:-1], rows.shape[-1]])
    return tf.cast(outputs, keras.config.floatx())


def normalized(units: int) -> list[keras.layers.Layer]:
  """Returns a Dense layer, LayerNormalization and SiLU."""
  return [keras.layers.Dense(units, use_bias=False),
          keras.layers.LayerNormalization(epsilon=1e-3), keras.layers.Activation("silu")]
