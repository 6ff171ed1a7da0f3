"""The matrix products of a learner's step in `benchmarks.d4pg_step`, and little else.

They are a lower bound on the time of a step: forward and backward passes of both networks, without
biases, activations, losses, optimizers or a replay.
"""

import itertools
from collections.abc import Callable

from benchmarks import d4pg_problem as problem
from benchmarks.d4pg_problem import ACTION_SIZE, BATCH_SIZE, NUM_ATOMS, OBSERVATION_SIZE, Rows

import numpy as np
import tensorflow as tf

_KEEPS = 1e-6  # The next step's input has this share of each product, so all are computed.


def make_steps(rows: Rows) -> Callable[[], float]:
  """Returns a function that takes `STEPS_PER_CALL` steps, and returns a number from the last one.
  """
  policy = _weights([OBSERVATION_SIZE, *problem.POLICY_SIZES, ACTION_SIZE])
  critic = _weights([OBSERVATION_SIZE + ACTION_SIZE, *problem.CRITIC_SIZES, NUM_ATOMS])

  @tf.function(jit_compile=True, autograph=False)
  def steps(state: list[list[tf.Tensor]]) -> list[list[tf.Tensor]]:
    return tf.while_loop(lambda i, _: i < problem.STEPS_PER_CALL,
                         lambda i, state: (i + 1, _step(state)), [0, state])[1]

  state = [policy, critic, [*policy], [*critic], [tf.constant(rows.observation[:BATCH_SIZE])]]

  def call() -> float:
    nonlocal state
    state = steps(state)
    return float(state[-1][0][0, 0])

  return call


def _weights(sizes: list[int]) -> list[tf.Tensor]:
  draw = np.random.default_rng(0)
  return [tf.constant(draw.normal(0.0, n ** -0.5, [n, m]), tf.float32)
          for n, m in itertools.pairwise(sizes)]


def _step(state: list[list[tf.Tensor]]) -> list[list[tf.Tensor]]:
  policy, critic, target_policy, target_critic, (x,) = state
  *_, next_action = _forward(target_policy, x)
  with_action = tf.concat([x, next_action], 1)
  *_, goal = _forward(target_critic, with_action)
  *inputs, logits = _forward(critic, with_action)
  critic_gradients = _backward(critic, inputs, logits - goal)
  *policy_inputs, action = _forward(policy, x)
  *inputs, logits = _forward(critic, tf.concat([x, action], 1))
  backward = logits
  for weights in reversed(critic):
    backward = tf.matmul(backward, weights, transpose_b=True)
  policy_gradients = _backward(policy, policy_inputs, backward[:, OBSERVATION_SIZE:])
  moved = lambda network, gradients: [w - _KEEPS * g for w, g in zip(
      network, gradients, strict=True)]
  return [moved(policy, policy_gradients), moved(critic, critic_gradients), target_policy,
          target_critic, [x + _KEEPS * next_action[:, :1]]]


def _forward(network: list[tf.Tensor], x: tf.Tensor) -> list[tf.Tensor]:
  """Returns the inputs of all layers, and the output of the last."""
  found = [x]
  for weights in network:
    found.append(tf.matmul(found[-1], weights))
  return found


def _backward(network: list[tf.Tensor], inputs: list[tf.Tensor], gradient: tf.Tensor
              ) -> list[tf.Tensor]:
  """Returns the gradients of a network's weights."""
  found = []
  for layer, (weights, x) in enumerate(reversed([*zip(network, inputs, strict=True)]), 1):
    found.append(tf.matmul(x, gradient, transpose_a=True))
    if layer < len(network):
      gradient = tf.matmul(gradient, weights, transpose_b=True)
  return found[::-1]
