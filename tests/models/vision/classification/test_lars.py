"""LARS against NumPy in float64, alone and on two replicas."""

from models.vision.classification.lars import LARS
from replicator import Replicator, schedules, wrap_optimizer

import keras
import numpy as np
import tensorflow as tf

RNG = np.random.default_rng(0)
KERNEL, BIAS = RNG.normal(size=[3, 2]), RNG.normal(size=[2])
GRADIENTS = [(RNG.normal(size=[3, 2]), RNG.normal(size=[2])) for _ in range(3)]
RATE = schedules.linear(8.0, 2.0, end=3)
DECAY, TRUST, MOMENTUM = 0.1, 0.01, 0.875  # Keras rounds the momentum to float32.


def reference() -> list[np.ndarray]:
  """You et al. 2017, algorithm 1; the bias by SGD without decay."""
  variables = [KERNEL.copy(), BIAS.copy()]
  changes = [np.zeros_like(v) for v in variables]
  for step, gradients in enumerate(GRADIENTS):
    rate = 8.0 - 2.0 * step
    for i, gradient in enumerate(gradients):
      w, local = variables[i], 1.0
      if i == 0:
        norm = np.linalg.norm
        local = TRUST * norm(w) / (norm(gradient) + DECAY * norm(w))
        gradient = gradient + DECAY * w
      changes[i] = MOMENTUM * changes[i] + rate * local * gradient
      variables[i] = w - changes[i]
  return variables


def test_updates_are_the_papers():
  keras.config.set_floatx("float64")
  replicator = Replicator("mirrored", logical_cpus=2)
  with replicator.scope():
    variables = [keras.Variable(value) for value in (KERNEL, BIAS)]
    optimizer = wrap_optimizer(LARS(RATE, MOMENTUM, DECAY, TRUST), variables)
  for gradients in GRADIENTS:
    def step(gradients=gradients):
      optimizer.apply([tf.constant(gradient) for gradient in gradients])
    replicator.run(step)
  for variable, expected in zip(variables, reference(), strict=True):
    np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-12)


def test_a_kernel_of_zeros_moves_and_one_without_gradient_stays():
  zeros, resting = keras.Variable(np.zeros([2, 2])), keras.Variable(np.ones([2, 2]))
  optimizer = LARS(0.5, momentum=0.0)
  optimizer.build([zeros, resting])
  optimizer.apply([tf.ones([2, 2]), tf.zeros([2, 2])])
  np.testing.assert_allclose(zeros.numpy(), -0.5)
  np.testing.assert_array_equal(resting.numpy(), 1)
