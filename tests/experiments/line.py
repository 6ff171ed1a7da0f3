"""Networks of one linear layer, whose updates can be written out by hand."""

from collections.abc import Callable
from typing import Any
from unittest import mock

from models.vision.images.classes import Classes
from replicator.step import context

import keras
import numpy as np
import tensorflow as tf

IMAGES = np.random.default_rng(0).integers(0, 256, [16, 2, 2, 1]).astype(np.uint8)
BATCH = {"image": IMAGES, "label": np.arange(16, dtype=np.int32) % 10}


class Line(keras.Model):
  """Images `[n, 2, 2, 1]` of latents, or scores `[n]` of images: one linear layer and a tanh."""

  def __init__(self, inputs: int, outputs: tuple[int, ...]):
    super().__init__()
    self.dense = keras.layers.Dense(int(np.prod(outputs, initial=1)))
    self.dense.build((None, inputs))
    self.outputs_shape = outputs
    self.built = True

  def call(self, inputs, labels=None, training=False):
    x = self.dense(tf.reshape(inputs, [-1, np.prod(inputs.shape[1:])]))
    return tf.reshape(tf.tanh(x), [-1, *self.outputs_shape])


class Whole(Line):
  """A line of everything that it gets, side by side: images or latents, labels, images' latents."""

  def __init__(self, inputs: int, outputs: tuple[int, ...], result: Callable = lambda x: x):
    super().__init__(inputs, outputs)
    self.result = result
    self.untrained = 0

  def call(self, *inputs, training=False):
    self.untrained += not training
    parts = [tf.reshape(tf.cast(x, tf.float64), [-1, int(np.prod(x.shape[1:]))]) for x in inputs]
    return self.result(super().call(tf.concat(parts, 1)))


def line_gan(step, discriminator=lambda: Line(4, ()), rate: float = 0.5, **options):
  """A step of two linear networks, with plain gradient descent."""
  keras.utils.set_random_seed(0)
  return step((2, 2, 1), Classes.numbered(10), optimizer=lambda: keras.optimizers.SGD(rate),
              generator=lambda **_: Line(3, (2, 2, 1)), discriminator=lambda **_: discriminator(),
              latent_dim=3, **options)


def one_step(step: Callable, *batch: Any, number: int = 0) -> Any:
  """The result of a step of this number, of 100, which is not compiled: that would take longer."""
  with mock.patch.object(context.run, "steps", 100), context.entered(tf.constant(number, tf.int64)):
    return step(*batch)


def assert_scalars(found: dict, expected: dict) -> None:
  """A step returned these scalars, and no others."""
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_allclose(found[name], value, rtol=1e-9, err_msg=name)


def descend(variables, loss_fn) -> np.ndarray:
  """Makes one update of rate 0.5 by hand; the loss before."""
  values = [v.value for v in variables]
  with tf.GradientTape() as tape:
    loss = loss_fn()
  for value, gradient in zip(values, tape.gradient(loss, values), strict=True):
    value.assign_sub(0.5 * gradient)
  return loss.numpy()


def gradients_of(loss: Callable, values: list[np.ndarray]) -> list[np.ndarray]:
  """Exact to rounding: the imaginary part of the loss after an imaginary step of 1e-30."""
  found = [np.zeros(value.shape) for value in values]
  for number, gradient in enumerate(found):
    for index in np.ndindex(gradient.shape):
      moved = [value.astype(complex) for value in values]
      moved[number][index] += 1e-30j
      gradient[index] = loss(moved).imag / 1e-30
  return found


AVERAGING = "wrap_optimizer.ema_decay = 0.5"


def with_averages(optimizer: Any) -> list[np.ndarray]:
  """Gives an optimizer averages that differ from its weights, and returns them."""
  draw = np.random.default_rng(7)
  values = [draw.normal(size=each.shape) for each in optimizer.averages]
  for average, value in zip(optimizer.averages, values, strict=True):
    average.assign(value)
  return values
