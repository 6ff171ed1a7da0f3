"""EDM: one network that denoises at every noise level, with its loss and sampler.

Karras et al. 2022 (arXiv:2206.00364). A denoiser D(x; sigma) is a function of noisy examples
`[n, ...]` and of the standard deviations of their noise, [n] or []. It returns `[n, ...]`, the
expected clean example given each noisy one. The score is (D(x; sigma) - x) / sigma^2.
"""

from collections.abc import Callable, Sequence

from replicator import UsageError

import gin
import keras
import tensorflow as tf

Denoise = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
"""D(x; sigma): `[n, ...], [n] or [] -> [n, ...]`."""


@gin.configurable(denylist=["shape"])
class Denoiser(keras.Model):
  """A denoiser around a network F: D = c_skip x + c_out F(c_in x, ln(sigma) / 4) (equation 7).

  With these factors (table 1) the network's inputs and targets have variance 1 at every level.

  Args:
    shape: shape of an example.
    network: makes F from the shape, such as `@DenoisingMLP`.
    sigma_data: standard deviation of the examples.

  Raises:
    UsageError: `sigma_data` is not positive.
  """

  def __init__(self, shape: Sequence[int],
               network: Callable[[Sequence[int]], keras.Model] = gin.REQUIRED,
               sigma_data: float = 0.5):
    super().__init__(autocast=False)
    if not sigma_data > 0:
      raise UsageError(f"Denoiser.sigma_data = {sigma_data}: must be positive")
    self.sigma_data = sigma_data
    self.network = network(shape)
    self.built = True

  def call(self, x: tf.Tensor, sigma: tf.Tensor) -> tf.Tensor:
    sigma = tf.broadcast_to(sigma, tf.shape(x)[:1])
    column = _columns(sigma, x)
    total, *inputs = self._scaled(x, sigma)
    made = self.network(*inputs)
    return (self.sigma_data ** 2 / total * x
            + column * self.sigma_data * tf.math.rsqrt(total) * made)

  def features(self, x: tf.Tensor, sigma: tf.Tensor) -> tf.Tensor:
    """Returns the inputs of the network's last layer: `[n, ...], [n] -> [n, num_features]`."""
    return self.network.features(*self._scaled(x, sigma)[1:])

  def _scaled(self, x: tf.Tensor, sigma: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the variance of x, and the network's inputs."""
    total = tf.square(_columns(sigma, x)) + self.sigma_data ** 2
    return total, x * tf.math.rsqrt(total), tf.math.log(sigma) / 4.0


@gin.configurable(denylist=["position"])
def noise_level(position: tf.Tensor, sigma_min: float = 0.002, sigma_max: float = 80.0,
                rho: float = 7.0) -> tf.Tensor:
  """Returns the noise level at a position, from 0 (highest) to 1 (lowest) (equation 5)."""
  low, high = sigma_min ** (1 / rho), sigma_max ** (1 / rho)
  return (high + position * (low - high)) ** rho


def noisy(x: tf.Tensor, noise: tf.Tensor, sigma: tf.Tensor) -> tf.Tensor:
  """Adds noise to examples: `[n, ...], [n, ...] ~ N(0, 1), [n] -> [n, ...]`."""
  return x + _columns(sigma, x) * noise


def denoising_loss(denoiser: Denoiser, x: tf.Tensor, noise: tf.Tensor, sigma: tf.Tensor
                   ) -> tf.Tensor:
  """Returns the weighted mean squared error of a denoiser, initially about 1 at each level: [].

  Equation 2, with the weight of table 1: (sigma^2 + sigma_data^2) / (sigma sigma_data)^2. The
  arguments are those of `noisy`.
  """
  weight = tf.square(1.0 / sigma) + 1.0 / denoiser.sigma_data ** 2
  error = tf.math.squared_difference(denoiser(noisy(x, noise, sigma), sigma), x)
  return tf.reduce_mean(_columns(weight, x) * error)


def one_step(denoise: Denoise, noise: tf.Tensor, position: float = 0.0) -> tf.Tensor:
  """Turns noise into examples with one call: `[n, ...] ~ N(0, 1) -> [n, ...]`.

  `position` determines the noise level; see `noise_level`.
  """
  sigma = noise_level(tf.constant(position, noise.dtype))
  return denoise(sigma * noise, sigma)


def sample(denoise: Denoise, noise: tf.Tensor, steps: int = 20) -> tf.Tensor:
  """Turns noise into examples by Heun's method, without new noise (algorithm 1).

  `[n, ...] -> [n, ...]`. There are `steps` levels above 0, which take 2 `steps` - 1 calls of the
  denoiser. With one step, it is the same as `one_step`.
  """
  levels = noise_level(tf.linspace(tf.zeros([], noise.dtype), tf.ones([], noise.dtype), steps))

  def step(i: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    sigma, lower = levels[i], levels[i + 1]
    slope = (x - denoise(x, sigma)) / sigma
    euler = x + (lower - sigma) * slope
    corrected = (euler - denoise(euler, lower)) / lower
    return i + 1, x + (lower - sigma) * (slope + corrected) / 2.0

  x = levels[0] * noise
  _, x = tf.while_loop(lambda i, _: i < steps - 1, step, [0, x], [tf.TensorShape([]), x.shape])
  return denoise(x, levels[-1])  # An Euler step to 0 is just the denoiser's output.


def _columns(sigma: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
  """Reshapes `[n] -> [n, 1, ...]`, to the rank of x."""
  return tf.reshape(sigma, [-1, *[1] * (x.shape.rank - 1)])
