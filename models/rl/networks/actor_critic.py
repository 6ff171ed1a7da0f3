"""Networks of agents: the MLPs of Acme's D4PG, and an image torso."""

from collections.abc import Callable, Sequence

from models.rl.networks.noisy import NoisyMLP
from replicator import UsageError
from replicator.step.variables import held_by

import gin
import keras
import tensorflow as tf


class Trained(tf.Module):
  """A module whose trainable variables are those of its layers."""

  @property
  def trainable_variables(self) -> list[keras.Variable]:
    """The variables of each layer, in the order in which the layers became attributes."""
    layers = held_by(self, (keras.layers.Layer,))
    return [v for _, layer in layers for v in layer.trainable_variables]


def layer_norm_mlp(sizes: Sequence[int], name: str) -> list[keras.layers.Layer]:
  """Makes a Dense layer, LayerNormalization and tanh, then Dense and ELU for each further size."""
  if not sizes:
    raise UsageError(f"{name.capitalize()}.sizes = (): must have at least one size")
  first, *others = sizes
  return [keras.layers.Dense(first, kernel_initializer=_uniform(), name=f"{name}_0"),
          keras.layers.LayerNormalization(epsilon=1e-5, name=f"{name}_norm"),
          keras.layers.Activation("tanh"),
          *(keras.layers.Dense(size, elu, kernel_initializer=_uniform(), name=f"{name}_{i}")
            for i, size in enumerate(others, 1))]


@tf.custom_gradient
def elu(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
  """Applies the exponential linear unit (Clevert et al. 2016, arXiv:1511.07289) elementwise.

  `x` where it is positive, else `exp(x) - 1`. It does not use expm1, which takes twice as long with
  XLA; near 0 the result is therefore accurate to one rounding error of 1.
  """
  y = tf.where(x > 0, x, tf.exp(tf.minimum(x, 0)) - 1)
  return y, lambda dy: tf.where(y > 0, dy, dy * (y + 1))


@gin.configurable(denylist=["observation_shape", "outputs"])
class Policy(Trained):
  """A network from observations to the parameters of actions; images go through convolutions.

  Args:
    observation_shape: shape of one observation; three axes mean an image.
    outputs: number of outputs.
    sizes: units of the hidden layers.
  """

  def __init__(self, observation_shape: tuple[int, ...], outputs: int,
               sizes: Sequence[int] = (256, 256, 256)):
    super().__init__()
    # Initial actions are near 0, because a policy that starts at its limits is slow to leave them.
    last = keras.layers.Dense(
        outputs, kernel_initializer=_small(), name="policy_last")
    self.network = keras.Sequential(
        [*_torso(observation_shape), *layer_norm_mlp(sizes, "policy"), last])
    self.network.build((None, *observation_shape))

  def __call__(self, observations: tf.Tensor) -> tf.Tensor:
    """Returns the outputs for observations: `[n, *observation_shape] -> [n, outputs]`."""
    return _floating(self.network(observations))


@gin.configurable(denylist=["observation_shape", "action_size", "outputs"])
class Critic(Trained):
  """A network from observations and actions to values, or to logits of value distributions.

  Args:
    observation_shape: shape of one observation; three axes mean an image.
    action_size: length of an action.
    outputs: number of outputs.
    sizes: units of the hidden layers.
  """

  def __init__(self, observation_shape: tuple[int, ...], action_size: int, outputs: int,
               sizes: Sequence[int] = (512, 512, 256)):
    super().__init__()
    self.torso = keras.Sequential([*_torso(observation_shape), keras.layers.Flatten()])
    self.torso.build((None, *observation_shape))
    self.network = keras.Sequential([
        *layer_norm_mlp(sizes, "critic"),
        keras.layers.Dense(outputs, kernel_initializer=_uniform(), name="critic_last")])
    self.network.build((None, self.torso.output_shape[-1] + action_size))

  def __call__(self, observations: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """Returns outputs for pairs: `[n, *observation_shape], [n, action_size] -> [n, outputs]`."""
    seen = self.torso(observations)
    return _floating(self.network(tf.concat([seen, tf.cast(actions, seen.dtype)], 1)))


@gin.configurable(denylist=["observation_shape", "actions", "outputs"])
class ActionValues(Trained):
  """A network from observations to values of all actions, or to logits of value distributions.

  Args:
    observation_shape: shape of one observation; three axes mean an image.
    actions: number of actions.
    outputs: outputs per action.
    sizes: units of the hidden layers; at least two, or one for images.
    dueling: adds the value of the observation, from a separate last hidden layer, to the advantages
      of the actions, whose mean is 0 (Wang et al. 2016, arXiv:1511.06581, equation 9).
    noise: the `sigma` of the last two layers, see `NoisyMLP`; 0.5 in Fortunato et al. 2018, and 0
      for plain layers.

  Attributes:
    noise_size: length of the noise for an observation; 0 for plain layers.
  """

  def __init__(self, observation_shape: tuple[int, ...], actions: int, outputs: int,
               sizes: Sequence[int] = (256, 256), dueling: bool = False, noise: float = 0.0):
    super().__init__()
    torso = _torso(observation_shape)
    if len(sizes) < (1 if torso else 2):
      raise UsageError(f"ActionValues.sizes = {tuple(sizes)}: must have at least "
                       f"{'one size' if torso else 'two sizes for observations that are vectors'}")
    *first, last = sizes
    self.shape = [-1, actions, outputs]
    self.torso = keras.Sequential([*torso, *(layer_norm_mlp(first, "torso") if first else [])])
    self.torso.build((None, *observation_shape))
    # Initial values are near 0, and equal for all actions except for noise.
    self.heads = [NoisyMLP((last, n * outputs), noise, elu) if noise else keras.Sequential([
        keras.layers.Dense(last, elu, kernel_initializer=_uniform()),
        keras.layers.Dense(n * outputs, kernel_initializer=_small())])
        for n in ([actions, 1] if dueling else [actions])]
    for head in self.heads:
      head.build(self.torso.output_shape)
    self.noise_size = sum(head.noise_size for head in self.heads) if noise else 0

  def __call__(self, observations: tf.Tensor, noise: tf.Tensor | None = None) -> tf.Tensor:
    """Returns the outputs for observations: `[n, *observation_shape] -> [n, actions, outputs]`.

    Noisy layers take noise `[n, noise_size]`, which is ~ N(0, 1), or 0 for the mean weights.
    """
    given = [[self.torso(observations)]] * len(self.heads)
    if noise is not None:
      parts = tf.split(noise, [head.noise_size for head in self.heads], 1)
      given = [[*features, part] for features, part in zip(given, parts, strict=True)]
    found, *values = (_floating(head(*each)) for head, each in zip(self.heads, given, strict=True))
    found = tf.reshape(found, self.shape)
    if values:
      found += values[0][:, tf.newaxis] - tf.reduce_mean(found, 1, keepdims=True)
    return found


def _floating(outputs: tf.Tensor) -> tf.Tensor:
  """Casts to the precision of losses, which may be higher than that of layers."""
  return tf.cast(outputs, keras.config.floatx())


def _torso(observation_shape: tuple[int, ...]) -> list[keras.layers.Layer]:
  """Returns the layers of `image_torso` for images `[h, w, c]`; no layer for vectors."""
  return image_torso(observation_shape) if len(observation_shape) == 3 else []


@gin.configurable(denylist=["image_shape"])
def image_torso(image_shape: tuple[int, ...],
                convolutions: Sequence[Sequence[int]] = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
                ) -> list[keras.layers.Layer]:
  """Returns the first layers of agents' networks for images `[h, w, c]`.

  Args:
    image_shape: h, w, c.
    convolutions: filters, size and stride of each; by default those of Mnih et al. 2015.

  Raises:
    UsageError: the images are too small for the convolutions.
  """
  smallest = 1  # The image size that the convolutions reduce to one pixel.
  for _, size, stride in reversed(convolutions):
    smallest = size + stride * (smallest - 1)
  if min(image_shape[:2]) < smallest:
    raise UsageError(f"images of {image_shape[0]} x {image_shape[1]} are too small for "
                     f"image_torso.convolutions = {convolutions}, which need {smallest} pixels; "
                     "use smaller ones, such as ((16, 3, 1),), or set Environments.pixels")
  return [*(keras.layers.Conv2D(filters, size, stride, activation="relu", name=f"convolution_{i}")
            for i, (filters, size, stride) in enumerate(convolutions)), keras.layers.Flatten()]


def _small() -> keras.initializers.Initializer:
  return keras.initializers.VarianceScaling(1e-4)


def _uniform() -> keras.initializers.Initializer:
  return keras.initializers.VarianceScaling(1 / 3, "fan_out", "uniform")
