"""The networks of a trained step that can be exported: functions of named tensors."""

import contextlib
import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from models.gan import sampling
from models.gan.latents import is_uniform
from replicator.errors import UsageError

_SEED = 0
_RANGE = "-1 is black and 1 is white"


@dataclasses.dataclass(frozen=True)
class Values:
  """An argument or the result of a network: a batch of arrays.

  Attributes:
    name: what files call it.
    shape: of one array of the batch.
    dtype: of its elements.
    meaning: what it is, in a few words.
    low, high: the least and the greatest element; None where there is no bound.
  """

  name: str
  shape: tuple[int, ...]
  dtype: str
  meaning: str
  low: float | None = None
  high: float | None = None

  @property
  def spec(self) -> tf.TensorSpec:
    """That of a batch of any size."""
    return tf.TensorSpec([None, *self.shape], self.dtype, self.name)

  def draw(self, generator: np.random.Generator, count: int) -> np.ndarray:
    """Random arrays `[count, *shape]`: uniform between bounds, else normal."""
    size = [count, *self.shape]
    if self.low is None or self.high is None:
      return generator.standard_normal(size).astype(self.dtype)
    if np.issubdtype(self.dtype, np.integer):
      return generator.integers(int(self.low), int(self.high), size, self.dtype, endpoint=True)
    return generator.uniform(self.low, self.high, size).astype(self.dtype)


@dataclasses.dataclass(frozen=True)
class Network:
  """A network of a trained step.

  Attributes:
    name: `generator`, `encoder` or `policy`.
    meaning: what it does, in one sentence.
    inputs: its arguments.
    output: its result.
    function: computes it, as the run does.
  """

  name: str
  meaning: str
  inputs: tuple[Values, ...]
  output: Values
  function: Callable[..., tf.Tensor]

  def example(self, count: int) -> list[np.ndarray]:
    """The same random arguments in each call, `count` of each."""
    generator = np.random.default_rng(_SEED)
    return [each.draw(generator, count) for each in self.inputs]


def networks_of(step: Any) -> dict[str, Network]:
  """The networks of a trained step, by name: those of a GAN, or the policy of an agent.

  Raises:
    UsageError: the step is neither a GAN that `sampling.check` accepts, nor an agent as
      `models.rl.agents.Agent` describes it.
  """
  if hasattr(step, "act") and hasattr(step, "actor"):
    return {"policy": _policy(step)}
  sampling.check(step)
  image_shape = sampling.image_shape(step)
  made = {"generator": _generator(step, image_shape)}
  if hasattr(step, "encoder"):
    made["encoder"] = _encoder(step, image_shape)
  return made


def chosen(available: dict[str, Network], names: list[str]) -> list[Network]:
  """The networks of these names; all if there are none.

  Raises:
    UsageError: there is no network of some name.
  """
  for name in names:
    if name not in available:
      raise UsageError(f"--networks={name}: the run has no {name}; it has "
                       f"{' and '.join(available)}")
  return [available[name] for name in names or available]


def _generator(gan: Any, image_shape: tuple[int, int, int]) -> Network:
  dtype = keras.config.floatx()
  low, high, what = _distribution(gan.latents)
  codes = Values("z", (gan.latent_dim,), dtype, f"codes, {what}", low, high)
  images = Values("image", image_shape, dtype, f"images, {_RANGE}", -1, 1)
  if not gan.num_classes:
    return Network("generator", "Draws images from codes.", (codes,), images,
                   lambda z: gan.generate(z, tf.zeros([tf.shape(z)[0]], tf.int32)))
  labels = Values("label", (), "int32", "classes", 0, gan.num_classes - 1)
  return Network("generator", "Draws images of given classes from codes.", (codes, labels), images,
                 gan.generate)


def _distribution(latents: Any) -> tuple[float | None, float | None, str]:
  """The bounds of the codes of the training, and what they are."""
  if is_uniform(latents):
    return -1.0, 1.0, "uniform in [-1, 1] in the training"
  name = getattr(inspect.unwrap(latents), "__name__", repr(latents))
  return None, None, {"normal_latents": "N(0, 1) in the training"}.get(
      name, f"of '{name}' in the training")


def _encoder(gan: Any, image_shape: tuple[int, int, int]) -> Network:
  dtype = keras.config.floatx()

  def encode(images: tf.Tensor) -> tf.Tensor:
    optimizer = gan.optimizers["encoder"]
    with optimizer.averaged_weights() if optimizer.averages else contextlib.nullcontext():
      codes = gan.encoder(images, training=False)
    return getattr(codes, "mean", codes)  # BigBiGAN's are distributions.

  return Network("encoder", "Infers the codes of images.",
                 (Values("image", image_shape, dtype, f"images, {_RANGE}", -1, 1),),
                 Values("z", (gan.latent_dim,), dtype, "codes"), encode)


def _policy(agent: Any) -> Network:
  environments = agent.actor.environments
  size = environments.action_size
  # One row of noise for all observations: zeros, for the greedy action.
  def act(observations: tf.Tensor) -> tf.Tensor:
    return agent.act(observations, tf.zeros([1, size]))

  is_pixels = environments.observation_dtype == "uint8"
  return Network(
      "policy", "Chooses greedy actions.",
      (Values("observation", environments.observation_shape, environments.observation_dtype,
              f"observations of {environments.name}, which are normalized inside"
              if not is_pixels else f"pictures of {environments.name}",
              *((0, 255) if is_pixels else (None, None))),),
      Values("action", (size,), keras.config.floatx(),
             "actions; -1 is the lower bound of the environment's, and 1 the upper one", -1, 1),
      act)
