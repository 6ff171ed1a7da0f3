"""The networks of a trained step by their names: those of `networks`, and any Keras network."""

import contextlib
import inspect
import itertools
from typing import Any

import keras
import tensorflow as tf

from models.export.graph import FrozenGraph
from models.export.networks import ExportedNetwork, Values, networks_of
from models.gan.networks.bigbigan import CodeDistribution
from replicator import UsageError
from replicator.optimizers.optimizer import Optimizer
from replicator.step.variables import held_by
from replicator.training.inputs import stream
from replicator.training.observer import Training
from replicator.training.training_function import TrainingFunction


def chosen(training: Training, names: list[str]) -> list[ExportedNetwork]:
  """The networks of a trained step that have these names, or are attributes of these names.

  Without names they are those of `networks_of`; a step that has none of these gives all Keras
  networks that are attributes of it. What such a network takes is known from Keras, or else from a
  trace of the step.

  Raises:
    UsageError: there is no such network, the step does not call it with tensors alone, or its
      result is not one tensor.
  """
  step = training.step
  made = networks_of(step)
  layers = {name: value for name, value in vars(step).items()
            if isinstance(value, keras.Layer) and value.variables and name not in made}
  for name in names:
    if name not in made and name not in layers:
      raise UsageError(f"--networks={name}: the run has no {name}; it has "
                       f"{' and '.join([*made, *layers])}")
  if not (made or layers):
    raise UsageError(f"{type(step).__name__} is no GAN and no agent, and has no Keras network as "
                     "an attribute, so there is nothing to export")
  return [made[name] if name in made else _of_layer(training, name, layers[name])
          for name in names or made or layers]


def _of_layer(training: Training, name: str, layer: keras.Layer) -> ExportedNetwork:
  taken = _known_call(layer) or _traced_call(training, layer)
  names, values = list(taken), list(taken.values())  # `tf.nest` would sort a dict.
  specs = [each for each in tf.nest.flatten(values) if isinstance(each, tf.TensorSpec)]
  if not specs:
    raise UsageError(f"--networks={name}: the step does not call it with tensors, so that its "
                     "arguments are not known; make it a keras.Sequential that begins with "
                     "keras.Input")
  called_with = [Values(each.name, tuple(each.shape[1:]), each.dtype.name, "as in the training")
                 for each in specs]
  owned = {id(variable) for variable in layer.variables}
  optimizers = [each for _, each in held_by(training.step, (Optimizer,))
                if each.averages and owned & set(map(id, each.variables_updated))]

  def call(*arguments: tf.Tensor) -> Any:
    left = iter(arguments)
    given = tf.nest.map_structure(
        lambda each: next(left) if isinstance(each, tf.TensorSpec) else each, values)
    with contextlib.ExitStack() as stack:
      for optimizer in optimizers:
        stack.enter_context(optimizer.averaged_weights())
      result = layer(**dict(zip(names, given, strict=True)), training=False)
    return result.mean if isinstance(result, CodeDistribution) else result

  result = call(*(tf.zeros([1, *each.shape], each.dtype) for each in called_with))
  if not tf.is_tensor(result):
    raise UsageError(f"--networks={name}: its result is a {type(result).__name__}, and a file has "
                     "one tensor; give the step an attribute with a network of one result")
  uses = FrozenGraph(call, [each.spec for each in called_with]).uses
  inputs = tuple(each for each, is_used in zip(called_with, uses, strict=True) if is_used)

  def function(*arguments: tf.Tensor) -> tf.Tensor:
    """Calls the network with zeros for arguments that change nothing, such as unused labels."""
    given = iter(arguments)
    return call(*(next(given) if is_used else
                  tf.zeros([tf.shape(arguments[0])[0], *each.shape], each.dtype)
                  for each, is_used in zip(called_with, uses, strict=True)))

  averaged = ", with averaged weights," if optimizers else ""
  return ExportedNetwork(
      name, f"The network '{name}'{averaged} is called without training.", inputs,
      Values("result", tuple(result.shape[1:]), result.dtype.name, "its result"), function)


def _known_call(layer: keras.Layer) -> dict[str, Any]:
  """The argument of a functional network, with named specs for tensors; empty for others."""
  inputs = getattr(layer, "inputs", None)
  if not inputs:
    return {}
  return {"inputs": tf.nest.map_structure(
      lambda each: tf.TensorSpec(each.shape, each.dtype, each.name),
      layer.input if len(inputs) > 1 else inputs[0])}


def _traced_call(training: Training, layer: keras.Layer) -> dict[str, Any]:
  """The arguments of the last call of a network in a step, which is traced for that.

  They are by name, with named specs for tensors, and without `training`.
  """
  found: dict[str, Any] = {}
  call, signature = layer.call, inspect.signature(layer.call)

  def recorded(*arguments: Any, **options: Any) -> Any:
    given = signature.bind(*arguments, **options).arguments
    found.clear()
    found.update({name: _with_specs(name, value) for name, value in given.items()
                  if name != "training"})
    return call(*arguments, **options)

  batches = stream(training.inputs, training.input_context)
  with contextlib.closing(batches):
    layer.call = recorded
    try:
      TrainingFunction(training.replicator, training.step, 1).trace(next(batches))
    finally:
      del layer.call
  return found


def _with_specs(name: str, value: Any) -> Any:
  """An argument with specs for its tensors; those of a nest are numbered."""
  numbers = itertools.count()

  def with_spec(each: Any) -> Any:
    if not tf.is_tensor(each):
      return each
    return tf.TensorSpec(each.shape, each.dtype,
                         name if value is each else f"{name}_{next(numbers)}")
  return tf.nest.map_structure(with_spec, value)
