"""Helpers for all networks: building layer by layer, labels, and input checks."""

from collections.abc import Mapping
from typing import TypeVar

from replicator import UsageError

import keras
import tensorflow as tf

_Architecture = TypeVar("_Architecture")


class SameShape(keras.layers.Layer):
  """A layer whose outputs have the shape of its inputs."""

  def compute_output_shape(self, input_shape):
    return input_shape


def build_chain(layers: list[keras.layers.Layer], shape: tuple) -> tuple:
  """Creates the variables of a chain of layers; returns the shape of its output."""
  for layer in layers:
    layer.build(shape)
    shape = layer.compute_output_shape(shape)
  return shape


def call_chain(layers: list[keras.layers.Layer], x: tf.Tensor, **options: bool) -> tf.Tensor:
  """Calls a chain of layers; returns the output of the last."""
  for layer in layers:
    x = layer(x, **options)
  return x


class Residual(SameShape):
  """A residual connection around a chain of layers."""

  def __init__(self, trunk: list[keras.layers.Layer]):
    super().__init__()
    self.trunk = trunk

  def build(self, input_shape: tuple) -> None:
    build_chain(self.trunk, input_shape)

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    return inputs + call_chain(self.trunk, inputs)


def linear(inputs: int, outputs: int, initializer: keras.initializers.Initializer,
           dtype: str | None = None) -> keras.layers.Dense:
  """Makes a built linear layer without bias, `[n, inputs] -> [n, outputs]`."""
  layer = keras.layers.Dense(outputs, use_bias=False, kernel_initializer=initializer, dtype=dtype)
  layer.build((None, inputs))
  return layer


def small_normal() -> keras.initializers.Initializer:
  """Makes a normal initializer with standard deviation 0.02."""
  # New in each call, because a Keras initializer repeats its numbers when reused.
  return keras.initializers.RandomNormal(stddev=0.02)


def architecture_of(network: str, paper: str, architectures: Mapping[int, _Architecture],
                    resolution: int) -> _Architecture:
  """Returns a paper's architecture for a resolution.

  Raises:
    UsageError: there is none; the message names the network and the available resolutions.
  """
  if resolution not in architectures:
    valid = ", ".join(map(str, architectures))
    raise UsageError(f"{network}.resolution = {resolution!r}: {paper} has no networks of this "
                     f"size; use one of {valid}")
  return architectures[resolution]


def check_images(network: str, expected: tuple[int, int, int], images: tf.Tensor) -> None:
  """Raises a `UsageError` if images `[n, h, w, c]` do not have the network's image shape."""
  if tuple(images.shape[1:]) != expected:
    found = " x ".join(map(str, images.shape[1:]))
    advice = (f"set {network}.resolution and {network}.channels to those"
              if images.shape[1] == images.shape[2] else "crop them to squares")
    raise UsageError(f"{network} is built for images of {' x '.join(map(str, expected))} but was "
                     f"given {found}: {advice}")


def check_labels(network: str, num_classes: int, labels: tf.Tensor | None) -> None:
  """Raises a `UsageError` if a conditional network is called without labels."""
  if num_classes and labels is None:
    raise UsageError(f"{network}.num_classes = {num_classes} makes it conditional, but it was "
                     "given no labels: pass labels, or set num_classes = 0")


def class_weights(labels: tf.Tensor | None, num_classes: int, dtype: tf.DType | str,
                  network: str) -> tf.Tensor:
  """Returns class weights `[n, num_classes]` of a generator's examples, in a floating dtype.

  Integer labels `[n]` become one-hot rows: multiplying by them is a lookup with a dense,
  deterministic gradient. Floating labels `[n, num_classes]` are weights already, for a mixture of
  classes. Without labels it raises as `check_labels` does.
  """
  check_labels(network, num_classes, labels)
  labels = tf.convert_to_tensor(labels)
  if labels.dtype.is_floating:
    return tf.cast(labels, dtype)
  return tf.one_hot(labels, num_classes, dtype=dtype)
