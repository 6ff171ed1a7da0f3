"""A network of three variables, trained by a wrapped optimizer and by Keras alone."""

import contextlib
from collections.abc import Iterator
from unittest import mock

from replicator import Replicator, step_number, wrap_optimizer
from replicator.step.optimizers.schedules import linear
from replicator.strategies.compiled_step import CompiledStep
from tests.programs.closeness import nests_close

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend import core

RNG = np.random.default_rng(0)
BATCH = {"x": RNG.normal(size=[8, 3]), "y": RNG.normal(size=[8, 2])}
WEIGHTS = [RNG.normal(size=[3, 2]), RNG.normal(size=[2]), RNG.normal(size=[2])]


@contextlib.contextmanager
def exact_casts() -> Iterator[None]:
  """A context in which Keras alone makes a Python float float64 itself, and not a float32 of it."""
  cast, convert = core.cast, core.convert_to_tensor
  exact = lambda x: tf.constant(x, tf.float64)
  with mock.patch.object(core, "cast", lambda x, dtype: exact(x) if isinstance(x, float) and (
      dtype == "float64") else cast(x, dtype)), mock.patch.object(
          core, "convert_to_tensor", lambda x, dtype=None, **options: exact(x) if isinstance(
              x, float) and dtype is None else convert(x, dtype, **options)):
    yield


def make_variables(constraint=None) -> list[keras.Variable]:
  """Kernel, offset and scale of a small network."""
  names = ("kernel", "offset", "scale")
  variables = [keras.Variable(value, dtype=keras.config.floatx(), name=name)
               for name, value in zip(names, WEIGHTS, strict=True)]
  for variable in variables:
    variable.constraint = constraint
  return variables


def loss_of(variables, batch, step) -> tf.Tensor:
  """A loss whose gradients differ at every step."""
  kernel, offset, scale = (v.value for v in variables)
  prediction = tf.sin(tf.matmul(batch["x"], kernel) + offset) * scale
  error = prediction * (1.0 + tf.cast(step, prediction.dtype)) - batch["y"]
  return tf.reduce_mean(tf.reduce_sum(error ** 2, 1))


def gradients_of(variables, batch, step) -> list[tf.Tensor]:
  with tf.GradientTape() as tape:
    loss = loss_of(variables, batch, step)
  return tape.gradient(loss, [v.value for v in variables])


def train_plainly(optimizer: keras.optimizers.Optimizer, steps: int, constraint=None,
                  first_step: int = 0) -> list[list[np.ndarray]]:
  """The variables after each step of Keras alone on the full batch, its settings not rounded."""
  variables = make_variables(constraint)
  trajectory = []
  with exact_casts():
    optimizer.build(variables)
    for step in range(first_step, steps):
      batch = {name: tf.constant(value, variables[0].dtype) for name, value in BATCH.items()}
      optimizer.apply(gradients_of(variables, batch, step), variables)
      trajectory.append([v.numpy() for v in variables])
  return trajectory


def train(replicator: Replicator, optimizer, steps: int, constraint=None, **options):
  """The variables after each step, and the wrapped optimizer."""
  with replicator.scope():
    variables = make_variables(constraint)
    wrapped = wrap_optimizer(optimizer(), variables, **options)

  def step(batch):
    wrapped.apply(gradients_of(variables, batch, step_number()), variables)
    return tf.stack([tf.reduce_sum(v.value) for v in variables])

  trajectory = []
  dtype = keras.config.floatx()
  for _ in range(steps):
    sums = replicator.run(step, {name: value.astype(dtype) for name, value in BATCH.items()})
    for other in sums[1:]:  # All replicas hold the same variables.
      np.testing.assert_array_equal(other, sums[0])
    trajectory.append([v.numpy() for v in variables])
  return trajectory, wrapped


def assert_close(actual, expected):
  nests_close(actual, expected, 1e-11)


K = keras.optimizers


def adam(rate) -> K.Adam:
  return K.Adam(rate, beta_1=0.0, beta_2=0.9)


OPTIMIZERS = {
    "momentum": lambda: K.SGD(0.05, momentum=0.9, nesterov=True),
    "Adam": lambda: adam(linear(0.1, end=5)),
    # A binary fraction, since Keras alone rounds a weight decay to float32.
    "AdamW": lambda: K.AdamW(0.1, weight_decay=0.25),
    "RMSprop": lambda: K.RMSprop(0.1, momentum=0.5, centered=True),
}


def numpy_gradients() -> list[np.ndarray]:
  batch = {name: tf.constant(value) for name, value in BATCH.items()}
  return [g.numpy() for g in gradients_of(make_variables(), batch, 0)]


def clipped(gradients: list[np.ndarray], clip_norm: float) -> list[np.ndarray]:
  """Pascanu et al. 2013: g min(1, c / |g|), with the norm of all gradients together."""
  norm = np.sqrt(sum(np.sum(g ** 2) for g in gradients))
  return [g * min(1.0, clip_norm / norm) for g in gradients]


def averages_of(wrapped) -> list[np.ndarray]:
  return [average.numpy() for average in wrapped.averages]


def moving_average(trajectory, decay: float, start: int = 0) -> list[np.ndarray]:
  """sum_k (1 - d) d^(n - k) w_k over the n updates after `start`, and d^n w_start."""
  points = [WEIGHTS, *trajectory][start:]
  n = len(points) - 1
  factors = [decay ** n] + [(1 - decay) * decay ** (n - k) for k in range(1, n + 1)]
  return [sum(f * point[i] for f, point in zip(factors, points, strict=True)) for i in range(3)]


def train_with_bad_examples(replicator: Replicator, **options):
  """4 steps in one call, the first and the last with an infinite example on one replica."""
  with replicator.scope():
    variables = make_variables(keras.constraints.MaxNorm(3.0))
    wrapped = wrap_optimizer(adam(0.1), variables, ema_decay=0.5, ema_start=1,
                             **options)

  def step(batch):
    wrapped.apply(gradients_of(variables, batch, step_number()))
    return {"nonfinite": wrapped.nonfinite_updates}

  inputs = {name: np.stack([value] * 4) for name, value in BATCH.items()}
  inputs["x"][[0, 3], 0, 0] = np.inf
  logged, _ = CompiledStep(replicator, step, 4, logs=True)(0, inputs).fetch()
  return variables, wrapped, logged["nonfinite"]
