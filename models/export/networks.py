"""The networks of a trained step that can be exported: functions of named tensors."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from models.gan.evaluation import sampling
from models.gan.latents.distributions import is_uniform

_SEED = 0


@dataclasses.dataclass(frozen=True)
class Values:
  """An argument or the result of a network: a batch of arrays.

  Attributes:
    name: its name in the files.
    shape: the shape of one array of the batch.
    dtype: the type of its elements.
    meaning: its contents, in a few words.
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
    """The shape and dtype of a batch of any size."""
    return tf.TensorSpec([None, *self.shape], self.dtype, self.name)

  def draw(self, generator: np.random.Generator, count: int) -> np.ndarray:
    """Random arrays `[count, *shape]`: uniform between bounds; else normal, or integers 0 and 1."""
    size = [count, *self.shape]
    if np.issubdtype(self.dtype, np.integer):
      low, high = (0, 1) if self.low is None or self.high is None else (self.low, self.high)
      return generator.integers(int(low), int(high), size, self.dtype, endpoint=True)
    if self.low is None or self.high is None:
      return generator.standard_normal(size).astype(self.dtype)
    return generator.uniform(self.low, self.high, size).astype(self.dtype)


@dataclasses.dataclass(frozen=True)
class ExportedNetwork:
  """A network of a trained step, and the function that computes its output as the run does."""

  name: str  # `generator`, `encoder` or `policy`, or that of an attribute of the step.
  meaning: str  # Its purpose, in one sentence.
  inputs: tuple[Values, ...]
  output: Values
  function: Callable[..., tf.Tensor]

  def example(self, count: int) -> list[np.ndarray]:
    """The same random arguments in each call, `count` of each."""
    generator = np.random.default_rng(_SEED)
    return [each.draw(generator, count) for each in self.inputs]


def networks_of(step: Any) -> dict[str, ExportedNetwork]:
  """The networks of a trained step, by name, whose arguments are known from what the step is.

  They are those of a GAN that `sampling.check` accepts, or the policy of an agent as
  `models.rl.agents.Agent` describes it. Any other step has none.
  """
  if hasattr(step, "act") and hasattr(step, "actor"):
    return {"policy": _policy(step)}
  if not sampling.is_gan(step):
    return {}
  image_shape = sampling.image_shape(step)
  made = {"generator": _generator(step, image_shape)}
  if getattr(step, "encoder", None) is not None:
    made["encoder"] = _encoder(step, image_shape)
  return made


def _generator(gan: Any, image_shape: tuple[int, int, int]) -> ExportedNetwork:
  dtype = keras.config.floatx()
  low, high, what = _distribution(gan.latents)
  codes = Values("z", (gan.latent_dim,), dtype, f"codes, {what} in the training", low, high)
  images = Values("image", image_shape, dtype,
                  "images of -1 (black) to 1; in bytes, clip(round(127.5 (x + 1)), 0, 255)")
  name = f"The generator{_with_averages(gan, 'generator')}"
  if not gan.num_classes:
    return ExportedNetwork(
        "generator", f"{name} draws images from codes.", (codes,), images,
        lambda z: gan.generate(z, tf.zeros([tf.shape(z)[0]], tf.int32)))
  labels = Values("label", (), "int32", "classes", 0, gan.num_classes - 1)
  return ExportedNetwork("generator", f"{name} draws images of classes from codes.",
                         (codes, labels), images, gan.generate)


def _with_averages(gan: Any, network: str) -> str:
  """Words that follow the name of a network; empty if the run is not known to average weights."""
  averages = getattr(sampling.optimizer_of(gan, network), "averages", None)
  return ", with averaged weights," if averages else ""


def _distribution(latents: Any) -> tuple[float | None, float | None, str]:
  """The bounds of the codes of the training, and the name of their distribution."""
  if is_uniform(latents):
    return -1.0, 1.0, "uniform"
  name = getattr(inspect.unwrap(latents), "__name__", repr(latents))
  return None, None, "N(0, 1)" if name == "normal_latents" else f"of '{name}'"


def _encoder(gan: Any, image_shape: tuple[int, int, int]) -> ExportedNetwork:
  dtype = keras.config.floatx()
  averaged = _with_averages(gan, "encoder")
  images = Values("image", image_shape, dtype, "images, bytes / 127.5 - 1", -1, 1)
  return ExportedNetwork("encoder", f"The encoder{averaged} infers the codes of images.", (images,),
                         Values("z", (gan.latent_dim,), dtype, "codes"),
                         lambda images: sampling.encode(gan, images))


def _policy(agent: Any) -> ExportedNetwork:
  environments = agent.actor.environments
  size = environments.action_size
  is_image = environments.observation_dtype == "uint8"
  observations = Values(
      "observation", environments.observation_shape, environments.observation_dtype,
      f"observations of {environments.name}, as the environment gives them",
      *((0, 255) if is_image else ()))
  actions = Values("action", (size,), keras.config.floatx(),
                   "actions; -1 and 1 are the bounds of the environment", -1, 1)
  # No noise means the greedy action. One row of it is for all observations.
  return ExportedNetwork("policy", "The policy chooses greedy actions.", (observations,), actions,
                         lambda seen: agent.act(seen, tf.zeros([1, size])))
