"""The exportable networks of a trained step, as functions of named tensors."""

import contextlib
import dataclasses
import inspect
import itertools
from collections.abc import Callable
from typing import Any

from models.export.graph import FrozenGraph
from models.gan.evaluation import sampling
from models.gan.latents.distributions import is_uniform
from models.gan.networks.bigbigan import LatentDistribution
from replicator import UsageError
from replicator.step.optimizers.optimizer import Optimizer
from replicator.step.variables import held_by
from replicator.strategies.compiled_step import CompiledStep
from replicator.training.inputs.pipeline import stream
from replicator.training.run import Run

import keras
import numpy as np
import tensorflow as tf

_SEED = 0


@dataclasses.dataclass(frozen=True)
class Values:
  """An argument or the result of a network: a batch of arrays."""

  name: str  # In the files.
  shape: tuple[int, ...]  # The shape of one array of the batch.
  dtype: str  # The dtype of its elements.
  meaning: str  # Its contents, in a few words.
  low: float | None = None  # The smallest possible element; None if unbounded.
  high: float | None = None  # The largest possible element.

  @property
  def spec(self) -> tf.TensorSpec:
    """The shape and dtype of a batch of any size."""
    return tf.TensorSpec([None, *self.shape], self.dtype, self.name)

  def draw(self, generator: np.random.Generator, count: int) -> np.ndarray:
    """Draws `[count, *shape]`: uniform within the bounds; if unbounded, normal or 0 and 1."""
    size = [count, *self.shape]
    if np.issubdtype(self.dtype, np.integer):
      low, high = (0, 1) if self.low is None or self.high is None else (self.low, self.high)
      return generator.integers(int(low), int(high), size, self.dtype, endpoint=True)
    if self.low is None or self.high is None:
      return generator.standard_normal(size).astype(self.dtype)
    return generator.uniform(self.low, self.high, size).astype(self.dtype)


@dataclasses.dataclass(frozen=True)
class ExportedNetwork:
  """A network of a trained step, and the function that computes its output as in the run."""

  name: str  # `generator`, `encoder` or `policy`, or the name of an attribute of the step.
  meaning: str  # Its purpose, in one sentence.
  inputs: tuple[Values, ...]
  output: Values
  function: Callable[..., tf.Tensor]

  def example(self, count: int) -> list[np.ndarray]:
    """Returns `count` random examples of each argument, the same in every call."""
    generator = np.random.default_rng(_SEED)
    return [each.draw(generator, count) for each in self.inputs]


def chosen(run: Run, names: list[str]) -> list[ExportedNetwork]:
  """Returns the networks of a trained step by name; a name may be that of an attribute.

  Without names, these are the networks of `networks_of` or, if there are none, all Keras networks
  that are attributes of the step. The arguments of an attribute come from Keras, or else from
  tracing the step.

  Raises:
    UsageError: there is no such network, the step does not call it with tensors, or its result is
      not a single tensor.
  """
  step = run.module
  made = networks_of(step)
  layers = {name: value for name, value in vars(step).items()
            if isinstance(value, keras.Layer) and value.variables and name not in made}
  for name in names:
    if name not in made and name not in layers:
      raise UsageError(f"--networks={name}: the run has no {name}; it has "
                       f"{' and '.join([*made, *layers])}")
  if not (made or layers):
    raise UsageError(f"{type(step).__name__} is neither a GAN nor an agent, and none of its "
                     "attributes is a Keras network, so there is nothing to export")
  return [made[name] if name in made else _of_layer(run, name, layers[name])
          for name in names or made or layers]


def _of_layer(run: Run, name: str, layer: keras.Layer) -> ExportedNetwork:
  taken = _known_call(layer) or _traced_call(run, layer)
  names, values = list(taken), list(taken.values())  # `tf.nest` would sort a dict.
  specs = [each for each in tf.nest.flatten(values) if isinstance(each, tf.TensorSpec)]
  if not specs:
    raise UsageError(f"--networks={name}: the step does not call it with tensors, so its inputs "
                     "are unknown; make it a keras.Sequential that begins with keras.Input")
  called_with = [Values(each.name, tuple(each.shape[1:]), each.dtype.name, "as in training")
                 for each in specs]
  owned = {id(variable) for variable in layer.variables}
  optimizers = [each for _, each in held_by(run.module, (Optimizer,))
                if each.averages and owned & set(map(id, each.variables_updated))]

  def call(*arguments: tf.Tensor) -> Any:
    left = iter(arguments)
    given = tf.nest.map_structure(
        lambda each: next(left) if isinstance(each, tf.TensorSpec) else each, values)
    with contextlib.ExitStack() as stack:
      for optimizer in optimizers:
        stack.enter_context(optimizer.averaged_weights())
      result = layer(**dict(zip(names, given, strict=True)), training=False)
    return result.mean if isinstance(result, LatentDistribution) else result

  result = call(*(tf.zeros([1, *each.shape], each.dtype) for each in called_with))
  if not tf.is_tensor(result):
    raise UsageError(f"--networks={name}: it returns a {type(result).__name__}, but a file holds "
                     "one tensor; give the step an attribute with a network that returns one")
  uses = FrozenGraph(call, [each.spec for each in called_with]).uses
  inputs = tuple(each for each, is_used in zip(called_with, uses, strict=True) if is_used)

  def function(*arguments: tf.Tensor) -> tf.Tensor:
    """Calls the network with zeros for arguments without effect, such as unused labels."""
    given = iter(arguments)
    return call(*(next(given) if is_used else
                  tf.zeros([tf.shape(arguments[0])[0], *each.shape], each.dtype)
                  for each, is_used in zip(called_with, uses, strict=True)))

  averaged = ", with averaged weights," if optimizers else ""
  return ExportedNetwork(
      name, f"The network '{name}'{averaged} is called without training.", inputs,
      Values("result", tuple(result.shape[1:]), result.dtype.name, "its result"), function)


def _known_call(layer: keras.Layer) -> dict[str, Any]:
  """Returns a functional network's argument, with named specs for tensors; else nothing."""
  inputs = getattr(layer, "inputs", None)
  if not inputs:
    return {}
  return {"inputs": tf.nest.map_structure(
      lambda each: tf.TensorSpec(each.shape, each.dtype, each.name),
      layer.input if len(inputs) > 1 else inputs[0])}


def _traced_call(run: Run, layer: keras.Layer) -> dict[str, Any]:
  """Traces a step; returns the arguments of its last call to a network, by name.

  Tensors are replaced with named specs, and `training` is left out.
  """
  found: dict[str, Any] = {}
  call, signature = layer.call, inspect.signature(layer.call)

  def recorded(*arguments: Any, **options: Any) -> Any:
    given = signature.bind(*arguments, **options).arguments
    found.clear()
    found.update({name: _with_specs(name, value) for name, value in given.items()
                  if name != "training"})
    return call(*arguments, **options)

  batches = stream(run.inputs, run.input_context)
  with contextlib.closing(batches):
    layer.call = recorded
    try:
      CompiledStep(run.replicator, run.module, logs=True).trace(next(batches))
    finally:
      del layer.call
  return found


def _with_specs(name: str, value: Any) -> Any:
  """Replaces the tensors of an argument with named specs, numbered if they are in a nest."""
  numbers = itertools.count()

  def with_spec(each: Any) -> Any:
    if not tf.is_tensor(each):
      return each
    return tf.TensorSpec(each.shape, each.dtype,
                         name if value is each else f"{name}_{next(numbers)}")
  return tf.nest.map_structure(with_spec, value)


def networks_of(step: Any) -> dict[str, ExportedNetwork]:
  """Returns the networks of a trained step whose arguments are known, by name.

  They are the networks of a GAN that `sampling.check` accepts, or the policy of a
  `models.rl.agents.Agent`. Other steps have none.
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
  latents = Values("z", (gan.latent_dim,), dtype, f"latents, {what} in training", low, high)
  images = Values("image", image_shape, dtype,
                  "images of -1 (black) to 1; in bytes, clip(round(127.5 (x + 1)), 0, 255)")
  name = f"The generator{_with_averages(gan, 'generator')}"
  if not gan.num_classes:
    return ExportedNetwork(
        "generator", f"{name} draws images from latents.", (latents,), images,
        lambda z: gan.generate(z, tf.zeros([tf.shape(z)[0]], tf.int32)))
  labels = Values("label", (), "int32", "classes", 0, gan.num_classes - 1)
  return ExportedNetwork("generator", f"{name} draws images of classes from latents.",
                         (latents, labels), images, gan.generate)


def _with_averages(gan: Any, network: str) -> str:
  """Returns a phrase to follow a network's name; empty if the run does not average weights."""
  averages = getattr(sampling.optimizer_of(gan, network), "averages", None)
  return ", with averaged weights," if averages else ""


def _distribution(latents: Any) -> tuple[float | None, float | None, str]:
  """Returns the bounds of the training latents, and the name of their distribution."""
  if is_uniform(latents):
    return -1.0, 1.0, "uniform"
  name = getattr(inspect.unwrap(latents), "__name__", repr(latents))
  return None, None, "N(0, 1)" if name == "normal_latents" else f"of '{name}'"


def _encoder(gan: Any, image_shape: tuple[int, int, int]) -> ExportedNetwork:
  dtype = keras.config.floatx()
  averaged = _with_averages(gan, "encoder")
  images = Values("image", image_shape, dtype, "images, bytes / 127.5 - 1", -1, 1)
  return ExportedNetwork("encoder", f"The encoder{averaged} infers the latents of images.",
                         (images,), Values("z", (gan.latent_dim,), dtype, "latents"),
                         lambda images: sampling.encode(gan, images))


def _policy(agent: Any) -> ExportedNetwork:
  if getattr(agent, "memory_size", 0):
    raise UsageError(f"{type(agent).__name__}: its policy is recurrent, and an exported network "
                     "keeps no state; load the run in Python with replicator.load")
  environments = agent.actor.environments
  size = environments.action_size
  is_image = environments.observation_dtype == "uint8"
  observations = Values(
      "observation", environments.observation_shape, environments.observation_dtype,
      f"observations of {environments.name}, as the environment gives them"
      f"{f', the last {environments.stack} together' if environments.stack > 1 else ''}",
      *((0, 255) if is_image else ()))
  meaning, *bounds = (
      ("actions; -1 and 1 are the bounds of the environment", -1, 1) if not environments.discrete
      else ("actions; 1 is at the place of the one to take",) if len(environments.choices) == 1
      else (f"actions; each of the parts {list(environments.choices)} has 1 at the place of the "
            "option to take",))
  actions = Values("action", (size,), keras.config.floatx(), meaning, *bounds)
  # Zero noise gives the greedy action. One row of it is broadcast to all observations.
  noise = tf.zeros([1, getattr(agent, "noise_size", size)])
  return ExportedNetwork("policy", "The policy chooses greedy actions.", (observations,), actions,
                         lambda seen: tf.clip_by_value(agent.act(seen, noise), *bounds)
                         if bounds else agent.act(seen, noise))
