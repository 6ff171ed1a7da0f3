"""The learner of `benchmarks.d4pg_step` in JAX: replay, sampling and ten steps in one `jax.jit`."""

import functools
from collections.abc import Callable

from benchmarks import d4pg_problem as problem
from benchmarks.d4pg_problem import ATOMS, BATCH_SIZE, Batch, Rows

import jax
import jax.numpy as jnp
import numpy as np


def first_state() -> dict:
  """The weights of both networks, their targets, Adam's moments and the number of updates."""
  networks = {"policy": list(map(jnp.asarray, problem.policy_weights())),
              "critic": list(map(jnp.asarray, problem.critic_weights()))}
  copy = lambda tree: jax.tree.map(jnp.copy, tree)
  zeros = jax.tree.map(jnp.zeros_like, networks)
  return {"online": networks, "target": copy(networks), "mean": zeros, "square": copy(zeros),
          "updates": jnp.zeros([], jnp.int32)}


def update(state: dict, batch: Batch) -> tuple[dict, jax.Array]:
  """Takes one step; also returns the critic's loss."""
  online, target = state["online"], state["target"]
  loss, critic_gradients = jax.value_and_grad(_critic_loss)(
      online["critic"], target, batch)
  gradients = {"policy": _policy_gradients(online, batch.observation), "critic": critic_gradients}
  gradients = {name: _clipped(value) for name, value in gradients.items()}
  updates = state["updates"] + 1
  mean = jax.tree.map(lambda m, g: m + 0.1 * (g - m), state["mean"], gradients)
  square = jax.tree.map(lambda s, g: s + 0.001 * (g * g - s), state["square"], gradients)
  rate = problem.LEARNING_RATE * jnp.sqrt(1.0 - 0.999 ** updates) / (1.0 - 0.9 ** updates)
  online = jax.tree.map(
      lambda w, m, s: w - rate * m / (jnp.sqrt(s) + problem.ADAM_EPSILON), online, mean, square)
  target = jax.lax.cond(updates % problem.TARGET_PERIOD == 0, lambda: online, lambda: target)
  return {"online": online, "target": target, "mean": mean, "square": square,
          "updates": updates}, loss


class Learner:
  """Takes one update in each call."""

  def __init__(self):
    self._state, self._update = first_state(), jax.jit(update)

  def update(self, batch: Batch) -> float:
    """Takes one step; returns the critic's loss."""
    self._state, loss = self._update(self._state, batch)
    return float(loss)

  def weights(self) -> list[np.ndarray]:
    """The weights of the policy, then of the critic, in the order of `problem.weights`."""
    online = self._state["online"]
    return [np.asarray(x) for x in online["policy"] + online["critic"]]


def make_steps(rows: Rows) -> Callable[[], float]:
  """A function that samples and updates `STEPS_PER_CALL` times, and returns the last loss."""
  @functools.partial(jax.jit, donate_argnums=0)
  def compiled(state, key, rows):
    def one(state, key):
      return update(state, _sample(key, rows))
    return jax.lax.scan(one, state, jax.random.split(key, problem.STEPS_PER_CALL))

  state, key = first_state(), jax.random.key(0)
  rows = jax.device_put(rows)

  def steps() -> float:
    nonlocal state, key
    key, used = jax.random.split(key)
    state, losses = compiled(state, used, rows)
    return float(losses[-1])

  return steps


def _sample(key: jax.Array, rows: Rows) -> Batch:
  first = jax.random.randint(key, [BATCH_SIZE], 0, len(rows.reward) - problem.N_STEP)
  moments = first[:, None] + jnp.arange(problem.N_STEP)
  factors = problem.DISCOUNT * ~rows.terminated[moments]
  discounts = jnp.cumprod(factors, 1)
  before = jnp.concatenate([jnp.ones_like(discounts[:, :1]), discounts[:, :-1]], 1)
  return Batch(rows.observation[first], rows.action[first],
               jnp.sum(before * rows.reward[moments], 1), discounts[:, -1],
               rows.observation[first + problem.N_STEP])


def _critic_loss(critic: list, target: dict, batch: Batch) -> jax.Array:
  next_action = _policy(target["policy"], batch.next_observation)
  next_logits = _critic(target["critic"], batch.next_observation, next_action)
  goal = jax.lax.stop_gradient(_project(batch.reward, batch.discount, jax.nn.softmax(next_logits)))
  logits = _critic(critic, batch.observation, batch.action)
  return -jnp.mean(jnp.sum(goal * jax.nn.log_softmax(logits), 1))


def _policy_gradients(online: dict, observation: jax.Array) -> list:
  action, backward = jax.vjp(lambda policy: _policy(policy, observation), online["policy"])
  q = lambda action: jnp.sum(jax.nn.softmax(_critic(online["critic"], observation, action)) * ATOMS)
  direction = jax.grad(q)(action)
  norm = jnp.linalg.norm(direction, axis=1, keepdims=True)
  return backward(-direction / jnp.maximum(norm, 1.0) / BATCH_SIZE)[0]


def _clipped(gradients: list) -> list:
  norm = jnp.sqrt(sum(jnp.sum(g * g) for g in gradients))
  factor = problem.CLIP_NORM / jnp.maximum(norm, problem.CLIP_NORM)
  return [g * factor for g in gradients]


def _project(reward: jax.Array, discount: jax.Array, probabilities: jax.Array) -> jax.Array:
  """The distribution of `reward + discount * z`, on the atoms: `[n], [n], [n, 51] -> [n, 51]`."""
  moved = jnp.clip(reward[:, None] + discount[:, None] * ATOMS, ATOMS[0], ATOMS[-1])
  distance = jnp.abs(moved[:, None, :] - ATOMS[:, None]) / (ATOMS[1] - ATOMS[0])
  return jnp.sum(jnp.clip(1.0 - distance, 0.0, 1.0) * probabilities[:, None, :], 2)


def _hidden(weights: list, x: jax.Array) -> jax.Array:
  kernel, bias, scale, offset, *further = weights
  x = x @ kernel + bias
  x = x - jnp.mean(x, 1, keepdims=True)
  variance = jnp.mean(x * x, 1, keepdims=True)
  x = jnp.tanh(x * jax.lax.rsqrt(variance + problem.LAYER_NORM_EPSILON) * scale + offset)
  for kernel, bias in zip(further[::2], further[1::2], strict=True):
    x = jax.nn.elu(x @ kernel + bias)
  return x


def _policy(weights: list, observation: jax.Array) -> jax.Array:
  return jnp.tanh(_hidden(weights[:-2], observation) @ weights[-2] + weights[-1])


def _critic(weights: list, observation: jax.Array, action: jax.Array) -> jax.Array:
  x = jnp.concatenate([observation, action], 1)
  return _hidden(weights[:-2], x) @ weights[-2] + weights[-1]
