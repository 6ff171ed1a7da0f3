"""Agents: a step makes the updates of the formulas, written out once more.

The target networks, the actions of two steps, the weights and the discounts all differ, so that a
wrong one changes a loss.
"""

import functools
import math
import sys
import types
from collections.abc import Callable
from typing import Any

from experiments import d4pg, dqn, mpo, ppo, sac, td3
from models.rl import agents
from models.rl.networks.actor_critic import Critic, Policy
from models.rl.networks.critic_heads import ExpectedReturns
from models.rl.replay.replay import Transitions
from models.rl.replay.rollouts import Experience
from replicator import UsageError, random, schedules
from replicator.step import context
from tests.experiments.line import assert_scalars, descend, one_step

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf

SIZE, SHAPE, ACTIONS = 6, (3,), 2
SEEN = np.random.default_rng(1).normal(1.0, 2.0, [50, *SHAPE])
_draw = np.random.default_rng(0)
BATCH = Transitions(*map(tf.constant, (
    _draw.normal(1.0, 2.0, [SIZE, *SHAPE]), _draw.uniform(-1, 1, [SIZE, ACTIONS]),
    _draw.normal(size=SIZE), _draw.uniform(0, 1, SIZE), _draw.normal(1.0, 2.0, [SIZE, *SHAPE]),
    _draw.uniform(0.1, 1, SIZE), _draw.permutation(SIZE))))

NOISE = 10 * _draw.normal(size=[SIZE, ACTIONS])

mean = tf.reduce_mean


def lone_agent(make: Callable, shape: tuple, actions: int, batch_size: int, batch: Any,
               monkeypatch: pytest.MonkeyPatch, discrete: bool = False,
               masked: bool = False) -> Any:
  """An agent without an actor, with random weights and target networks; it samples `batch`."""
  monkeypatch.setattr(agents, "make_actor", lambda *parts, **_: types.SimpleNamespace(
      scalars=dict, environment_steps=tf.constant(50, tf.int64)))
  monkeypatch.setattr(context.run, "global_batch_size", batch_size)
  environments = types.SimpleNamespace(
      observation_shape=shape, action_size=actions, number=1, observation_dtype="float32",
      discrete=discrete, choices=(actions,) if discrete else (), masked=masked, goals=None,
      max_episode_steps=50, stack=1)
  agent = make(environments, lambda: keras.optimizers.SGD(0.5))
  draw = np.random.default_rng(2).normal
  for optimizer in agent.optimizers.values():
    for variable in (*optimizer.variables_updated, *optimizer.averages):
      if len(variable.shape):  # Not the temperature.
        variable.assign(draw(size=variable.shape, scale=0.5))
  agent.replay = types.SimpleNamespace(sample=lambda n: batch, scalars=dict)
  return agent


@pytest.fixture
def made(float64, monkeypatch):
  """Makes an agent with random weights and other target networks, which samples `BATCH`."""
  gin.parse_config(["Policy.sizes = (4,)", "Critic.sizes = (4,)", "Replay.capacity = 20",
                    "ActionValues.sizes = (4, 4)", f"Rollouts.length = {SIZE}"])

  def make(kind: type, discrete: bool = False, masked: bool = False, **options: Any) -> Any:
    agent = lone_agent(functools.partial(kind, **options), SHAPE, ACTIONS, SIZE, BATCH,
                       monkeypatch, discrete, masked)
    agent.normalizer.update(SEEN)
    agent.replay.updated = updated = []
    agent.replay.update_priorities = lambda *of: updated.append(of)
    return agent

  return make


def normalized(observations: tf.Tensor) -> tf.Tensor:
  return (observations - SEEN.mean(0)) / SEEN.std(0)


STATES, NEXT = normalized(BATCH.observation), normalized(BATCH.next_observation)


def owned(agent: Any, name: str) -> list:
  return agent.optimizers[name].variables_updated


def assert_step(agent: Any, other: Any, expected: dict, errors: tf.Tensor, step: int = 0) -> None:
  """A step logs the expected scalars, makes the updates of `other`, and sets priorities."""
  assert_updates(agent, other, expected, step)
  batch, found = agent.replay.updated.pop()
  assert batch is BATCH
  np.testing.assert_allclose(found, errors, rtol=1e-9)


def assert_updates(agent: Any, other: Any, expected: dict, step: int = 0) -> None:
  assert_scalars(one_step(agent, number=step), expected)
  for name in agent.optimizers:
    for found, wanted in zip(owned(agent, name), owned(other, name), strict=True):
      np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12, err_msg=name)


def test_td3_clones_recorded_actions(made):
  """Fujimoto & Gu 2021 (arXiv:2106.06860), equations 3 and 5."""
  agent, other = (made(td3.TD3, cloning=2.5, policy_delay=1) for _ in range(2))
  act = lambda: tf.tanh(other.policy(STATES))
  values = lambda: other.critics[0](STATES, act())[:, 0]
  weight = 2.5 / np.mean(np.abs(values()))
  expected = mean(values())
  descend(owned(other, "policy"), lambda: mean(
      mean((act() - BATCH.action) ** 2, 1) - weight * values()))
  found = one_step(agent._update_policy, STATES, BATCH.action)
  np.testing.assert_allclose(found, expected, rtol=1e-9)
  for a, b in zip(owned(agent, "policy"), owned(other, "policy"), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


MASK, NEXT_MASK = np.array([[1, 0], [0, 1], [1, 1]] * 2), np.array([[1, 1], [0, 1], [1, 0]] * 2)
# Observations that end with masks.
MASKED = BATCH._replace(**{
    name: tf.concat([getattr(BATCH, name)[:, :-ACTIONS], mask], 1)
    for name, mask in (("observation", MASK), ("next_observation", NEXT_MASK))})


def test_dqn_values_and_takes_only_possible_actions(made):
  agent, other = (made(dqn.DQN, discrete=True, masked=True) for _ in range(2))
  agent.replay.sample = lambda n: MASKED
  possible = lambda values, mask: np.where(mask, values, -1e9)
  now, later = normalized(MASKED.observation), normalized(MASKED.next_observation)
  values, judge = (other.network(states)[..., 0].numpy() for states in (now, later))
  with other.optimizers["network"].averaged_weights():
    following = other.network(later)[..., 0].numpy()
  best = possible(judge, NEXT_MASK).argmax(1)
  assert (best != judge.argmax(1)).any()
  target = BATCH.reward + BATCH.discount * following[np.arange(SIZE), best]
  taken = values[np.arange(SIZE), np.argmax(BATCH.action, 1)]
  found = one_step(agent)
  np.testing.assert_allclose(found["value"], possible(values, MASK).max(1).mean())
  np.testing.assert_allclose(agent.replay.updated.pop()[1], (taken - target) ** 2 / 2)
  actions = other.act(MASKED.observation, NOISE / 10).numpy().argmax(1)
  assert MASK[np.arange(SIZE), actions].all()


def test_ppo_has_probabilities_of_possible_actions_only(made):
  agent = made(ppo.PPO, discrete=True, masked=True)
  seen, log_probability, _ = agent.evaluate(MASKED.observation, np.eye(ACTIONS)[[0] * SIZE])
  states = np.concatenate([normalized(MASKED.observation)[:, :-ACTIONS], MASK], 1)
  np.testing.assert_allclose(seen, states, rtol=1e-12)
  weights = np.exp(agent.policy(states)) * MASK
  np.testing.assert_allclose(np.exp(log_probability), weights[:, 0] / weights.sum(1), rtol=1e-9)
  taken = np.argmax(agent.act(MASKED.observation, 0 * NOISE), 1)
  np.testing.assert_array_equal(taken, weights.argmax(1))


@pytest.mark.parametrize("target_entropy", [None, 0.5])
def test_a_step_of_sac_is_that_of_the_formulas(made, target_entropy):
  agent, other = (made(sac.SAC, initial_temperature=0.3, target_entropy=target_entropy)
                  for _ in range(2))
  values = lambda states, actions: [critic(states, actions)[:, 0] for critic in other.critics]

  def act(states, noise):
    average, x = tf.split(other.policy(states), 2, 1)
    deviation = tf.exp(-5 + 3.5 * (tf.tanh(x) + 1))
    actions = tf.tanh(average + deviation * noise)
    density = tf.exp(-noise ** 2 / 2) / math.sqrt(2 * math.pi) / deviation / (1 - actions ** 2)
    return actions, tf.math.log(density[:, 0] * density[:, 1])

  noise = one_step(lambda: [random.normal("policy", [SIZE, ACTIONS]) for _ in range(2)])
  following, density = act(NEXT, noise[0])
  with other.optimizers["critics"].averaged_weights():
    value = tf.minimum(*values(NEXT, following))
  target = BATCH.reward + BATCH.discount * (value - 0.3 * density)
  lowest = -ACTIONS if target_entropy is None else target_entropy
  errors = sum(abs(target - value) for value in values(STATES, BATCH.action)) / 2
  critics_loss = lambda: mean(BATCH.weight * sum(
      (target - value) ** 2 for value in values(STATES, BATCH.action))) / 2
  loss = critics_loss()
  descend(owned(other, "critics"), critics_loss)
  actions, density = act(STATES, noise[1])
  expected = {"loss/critics": loss, "td_error": mean(BATCH.weight * errors),
              "entropy": -mean(density), "value": mean(tf.minimum(*values(STATES, actions)))}

  def policy_loss():
    actions, density = act(STATES, noise[1])
    return mean(0.3 * density - tf.minimum(*values(STATES, actions)))

  descend(owned(other, "policy"), policy_loss)
  descend(owned(other, "temperature"),
          lambda: other.log_temperature.value * (expected["entropy"] - lowest))
  expected["temperature"] = tf.exp(other.log_temperature.value)
  assert_step(agent, other, expected, errors)
  np.testing.assert_allclose(agent.act(BATCH.observation, noise[0]), act(STATES, noise[0])[0],
                             rtol=1e-9)


def test_a_step_of_d4pg_is_that_of_the_formulas(made):
  agent, other = (made(d4pg.D4PG, returns=ExpectedReturns, action_gradient_norm=0.1,
                       clip_noise=clips) for clips in (True, False))
  act = lambda states: tf.tanh(other.policy(states))
  value = lambda states, actions: other.critic(states, actions)[:, 0]
  with other.optimizers["policy"].averaged_weights():
    following = act(NEXT)
  with other.optimizers["critic"].averaged_weights():
    target = BATCH.reward + BATCH.discount * value(NEXT, following)
  losses = (value(STATES, BATCH.action) - target) ** 2 / 2
  actions = act(STATES)
  with tf.GradientTape() as tape:
    tape.watch(actions)
    values = value(STATES, actions)
  slope = tape.gradient(values, actions)
  slope *= np.minimum(1, 0.1 / np.linalg.norm(slope, axis=1, keepdims=True))
  descend(owned(other, "policy"), lambda: -mean(tf.reduce_sum(slope * act(STATES), 1)))
  descend(owned(other, "critic"),
          lambda: mean(BATCH.weight * (value(STATES, BATCH.action) - target) ** 2) / 2)
  assert_step(agent, other, {"loss/critic": mean(BATCH.weight * losses),
                             "value": mean(values)}, losses)
  for each, limit in ((agent, 1.0), (other, np.inf)):
    expected = np.clip(act(STATES) + 0.3 * NOISE, -limit, limit)
    np.testing.assert_allclose(each.act(BATCH.observation, NOISE), expected, rtol=1e-9)


def test_a_step_of_td3_is_that_of_algorithm_1(made):
  agent, other = (made(td3.TD3, target_policy_noise=0.5, target_noise_clip=0.2) for _ in range(2))
  act = lambda states: tf.tanh(other.policy(states))
  values = lambda states, actions: [critic(states, actions)[:, 0] for critic in other.critics]
  before = [v.numpy() for v in owned(agent, "policy")]
  for step in range(2):  # The policy moves at the second one.
    noise = one_step(random.normal, "target", [SIZE, ACTIONS], number=step)
    assert np.any(abs(0.5 * noise) > 0.2)
    with other.optimizers["policy"].averaged_weights():
      following = np.clip(act(NEXT) + np.clip(0.5 * noise, -0.2, 0.2), -1, 1)
    with other.optimizers["critics"].averaged_weights():
      target = BATCH.reward + BATCH.discount * tf.minimum(*values(NEXT, following))
    errors = sum(abs(target - value) for value in values(STATES, BATCH.action)) / 2
    critics_loss = lambda target=target: mean(BATCH.weight * sum(
        (target - value) ** 2 for value in values(STATES, BATCH.action)))
    loss = critics_loss()
    descend(owned(other, "critics"), critics_loss)
    value = mean(values(STATES, act(STATES))[0])
    if step == 1:
      descend(owned(other, "policy"), lambda: -mean(values(STATES, act(STATES))[0]))
    for name in other.optimizers:  # A descent moves no averages.
      for wanted, found in zip(other.optimizers[name].averages, agent.optimizers[name].averages,
                               strict=True):
        found.assign(wanted)
    expected = {"loss/critics": loss, "td_error": mean(BATCH.weight * errors), "value": value}
    assert_step(agent, other, expected, errors, step)
    moved = any((v.numpy() != old).any()
                for v, old in zip(owned(agent, "policy"), before, strict=True))
    assert moved == (step == 1)
  expected = np.clip(act(STATES) + 0.1 * NOISE, -1, 1)
  assert 0 < np.mean(abs(expected) == 1) < 1
  np.testing.assert_allclose(agent.act(BATCH.observation, NOISE), expected, rtol=1e-9)


@pytest.mark.parametrize("double, noise", [(True, 0.0), (False, 0.0), (True, 0.5), (False, 0.5)])
def test_a_step_of_dqn_is_that_of_the_formulas(made, double, noise):
  gin.parse_config(["ActionValues.dueling = True", f"ActionValues.noise = {noise}",
                    "RateLimiter.learning_starts = 20", "RateLimiter.update_ratio = 1.6666667"])
  # After 30 more environment steps: 0.6 at training step 50.
  epsilon = schedules.linear(1.0, 0.2, end=100)
  agent, other = (made(dqn.DQN, discrete=True, double=double, epsilon=epsilon) for _ in range(2))
  # A noisy head has noise for its 4 inputs and 4 hidden units twice, and for its outputs.
  size = (12 + ACTIONS) + (12 + 1) if noise else 0
  assert agent.noise_size == ACTIONS + size
  with context.entered(tf.constant(0, tf.int64)):
    draws = [random.normal("noise", [SIZE, size]) for _ in range(2 + double)] if noise else [()] * 3

  def values(states, draw):
    parts = tf.split(draw, [12 + ACTIONS, 12 + 1], 1) if noise else None
    advantage, value = (head(other.network.torso(states), *([parts[i]] if noise else []))
                        for i, head in enumerate(other.network.heads))
    return value + advantage - mean(advantage, 1, keepdims=True)

  pick = lambda values, actions: tf.reduce_sum(values * np.eye(ACTIONS)[np.argmax(actions, 1)], 1)
  with other.optimizers["network"].averaged_weights():
    following = values(NEXT, draws[0])
  judge = values(NEXT, draws[1]) if double else following
  target = BATCH.reward + BATCH.discount * pick(following, judge)
  present = lambda: values(STATES, draws[1 + double])
  losses = (pick(present(), BATCH.action) - target) ** 2 / 2
  expected = {"loss/network": mean(BATCH.weight * losses), "epsilon": 0.6,
              "value": mean(np.max(present(), 1))}
  descend(owned(other, "network"), lambda: mean(
      BATCH.weight * (pick(present(), BATCH.action) - target) ** 2) / 2)
  assert_step(agent, other, expected, losses)
  np.testing.assert_array_equal(
      agent.act(BATCH.observation, tf.zeros([SIZE, agent.noise_size])),
      np.eye(ACTIONS)[np.argmax(values(STATES, tf.zeros([SIZE, size])), 1)])


@pytest.mark.parametrize("discrete", [False, True])
def test_a_step_of_ppo_is_that_of_the_formulas(made, discrete):
  agent, other = (made(ppo.PPO, discrete=discrete, entropy_coefficient=0.1) for _ in range(2))
  actions = np.eye(ACTIONS)[np.argmax(BATCH.action, 1)] if discrete else BATCH.action.numpy()

  def probability():
    outputs = other.policy(STATES)
    if discrete:
      weights = tf.exp(outputs)
      return tf.reduce_sum(weights * actions, 1) / tf.reduce_sum(weights, 1)
    deviation = tf.exp(other.actions.log_deviation.value)
    return tf.reduce_prod(tf.exp(-((actions - outputs) / deviation) ** 2 / 2)
                          / (math.sqrt(2 * math.pi) * deviation), 1)

  def entropy():
    if not discrete:
      deviation = tf.exp(other.actions.log_deviation.value)
      return tf.reduce_sum(tf.math.log(deviation * math.sqrt(2 * math.pi * math.e)))
    p = tf.nn.softmax(other.policy(STATES))
    return -mean(tf.reduce_sum(p * tf.math.log(p), 1))

  before = probability() * np.exp([0.5, -0.5, 0.1, -0.1, 0.4, -0.4])
  advantage, target = np.array([1.0, 1.0, 2.0, -3.0, -1.0, 4.0]), np.arange(6.0)
  normal = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
  ratio = lambda: probability() / before
  value = lambda: other.critic(STATES)[:, 0]

  def policy_loss():
    gain = tf.where(normal > 0, tf.minimum(ratio(), 1.2), tf.maximum(ratio(), 0.8)) * normal
    return -mean(gain) - 0.1 * entropy()

  expected = {"loss/policy": policy_loss(), "entropy": entropy(), "clipped": 4 / 6,
              "kl": mean(ratio() - 1 - np.log(ratio())), "value": mean(value()),
              "loss/critic": mean((value() - target) ** 2) / 2}
  evaluated = STATES, np.log(probability()), value()
  descend(owned(other, "policy"), policy_loss)
  descend(owned(other, "critic"), lambda: mean((value() - target) ** 2) / 2)
  batch = Experience(*map(tf.constant, (STATES, actions, np.log(before), advantage, target)))
  agent.replay = types.SimpleNamespace(minibatch=lambda: batch)
  for found, wanted in zip(agent.evaluate(BATCH.observation, actions), evaluated, strict=True):
    np.testing.assert_allclose(found, wanted, rtol=1e-9)
  assert_updates(agent, other, expected)
  outputs, noise = other.policy(STATES), 0.0 if discrete else NOISE
  expected = (np.eye(ACTIONS)[np.argmax(outputs, 1)] if discrete else
              outputs + tf.exp(other.actions.log_deviation.value) * noise)
  np.testing.assert_allclose(agent.act(BATCH.observation, NOISE * 0.0 + noise), expected,
                             rtol=1e-9)


@pytest.mark.parametrize("kind, settings, line", [
    (sac.SAC, {"target_entropy": 1.4}, r"^SAC.target_entropy = 1.4: no policy .* have 1.386 nats"),
    (ppo.PPO, {}, r"^train.global_batch_size = 1: PPO normalizes advantages over a minibatch")])
def test_settings_that_cannot_train_are_refused(made, monkeypatch, kind, settings, line):
  if kind is ppo.PPO:
    monkeypatch.setattr(sys.modules[__name__], "SIZE", 1)
  with pytest.raises(UsageError, match=line):
    made(kind, **settings)


TARGETS = {d4pg.D4PG: ["critic", "policy"], sac.SAC: ["critics"], dqn.DQN: ["network"],
           mpo.MPO: ["critic", "policy"], td3.TD3: ["critics", "policy"]}


@pytest.mark.parametrize("period", [1, 3])
@pytest.mark.parametrize("tau", [0.25, 1.0])
@pytest.mark.parametrize("kind", TARGETS)
def test_target_networks_move_by_tau_once_per_period(made, kind, tau, period):
  name = "policy_delay" if kind is td3.TD3 else "target_update_period"
  agent = made(kind, discrete=kind is dqn.DQN, tau=tau, **{name: period})
  assert [name for name, each in agent.optimizers.items() if each.averages] == TARGETS[kind]
  for step in range(1, 4):
    before = {name: [v.numpy() for v in agent.optimizers[name].averages] for name in TARGETS[kind]}
    one_step(agent, number=step - 1)
    share = tau if step % period == 0 else 0.0
    for name, targets in before.items():
      for variable, old, new in zip(owned(agent, name), targets, agent.optimizers[name].averages,
                                    strict=True):
        wanted = variable.numpy() if share == 1 else share * variable.numpy() + (1 - share) * old
        np.testing.assert_allclose(new, wanted, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("kind", [sac.SAC, td3.TD3, d4pg.D4PG])
def test_networks_of_the_users_take_the_places_of_these(made, kind):
  class OwnPolicy(Policy):
    """A policy of the user's."""

  class OwnCritic(Critic):
    """A critic of the user's."""

  agent = made(kind, policy=OwnPolicy, critic=OwnCritic)
  critics = [agent.critic] if kind is d4pg.D4PG else agent.critics
  assert {type(agent.policy), *map(type, critics)} == {OwnPolicy, OwnCritic}


def test_a_step_of_mpo_is_that_of_the_formulas(made):
  """Abdolmaleki et al. 2018 (arXiv:1812.02256), equations of section 4, in NumPy's terms."""
  k, bounds = 3, {"epsilon": 0.1, "epsilon_penalty": 0.2, "epsilon_mean": 0.3,
                  "epsilon_deviation": 0.4}
  agent, other = (made(mpo.MPO, returns=ExpectedReturns, num_action_samples=k, **bounds)
                  for _ in range(2))
  duals = [np.log(np.expm1(x)) for x in (0.5, 0.7, np.array([0.3, 0.2]), np.array([0.4, 0.6]))]
  for each in (agent, other):
    for variable, value in zip(each.duals, duals, strict=True):
      variable.assign(value)

  def distribution(states):
    average, x = tf.split(other.policy(states), 2, 1)
    return average[:, None], (0.5 * tf.math.log(1 + tf.exp(x)) / math.log(2) + 1e-6)[:, None]

  def density(x, average, deviation):  # For each number: [n, k, a].
    return tf.exp(-((x - average) / deviation) ** 2 / 2) / deviation / math.sqrt(2 * math.pi)

  def moved(old, new):  # The divergence of each number.
    (m, d), (n, e) = old, new
    return mean(tf.math.log(e / d) + (d ** 2 + (m - n) ** 2) / (2 * e ** 2) - 0.5, [0, 1])

  average, deviation = (part[:, 0].numpy() for part in distribution(STATES))
  wanted = np.linspace(-1.5, 1.5, SIZE * ACTIONS).reshape(SIZE, ACTIONS)
  np.testing.assert_allclose(agent.act(BATCH.observation, (wanted - average) / deviation),
                             np.clip(wanted, -1, 1), rtol=1e-9)

  noise = one_step(random.normal, "policy", [SIZE, k, ACTIONS])
  with other.optimizers["policy"].averaged_weights():
    old = distribution(NEXT)
  actions = old[0] + old[1] * noise
  with other.optimizers["critic"].averaged_weights():
    values = tf.stack([other.critic(NEXT, tf.clip_by_value(actions[:, j], -1, 1))[:, 0]
                       for j in range(k)], 1)
  outside = -tf.sqrt(tf.reduce_sum(tf.maximum(abs(actions) - 1, 0) ** 2, 2))
  target = BATCH.reward + BATCH.discount * mean(values, 1)
  losses = (other.critic(STATES, BATCH.action)[:, 0] - target) ** 2 / 2

  shares = [tf.exp(x) / tf.reduce_sum(tf.exp(x), 1, keepdims=True)
            for x in (values / 0.5, outside / 0.7)]
  weights = sum(shares)[:, :, None]
  expected = {"loss/critic": mean(BATCH.weight * losses), "value": mean(values),
              "deviation": mean(old[1]), "temperature": 0.5}
  parts = lambda new: [(new[0], old[1]), (old[0], new[1])]
  kl = [moved(old, part) for part in parts(distribution(NEXT))]
  expected |= {"kl_mean": mean(kl[0]), "kl_deviation": mean(kl[1])}

  def policy_loss():
    new = parts(distribution(NEXT))
    fit = [tf.reduce_sum(weights * tf.math.log(density(actions, *part)), [1, 2]) for part in new]
    return (tf.reduce_sum([0.3, 0.2] * moved(old, new[0]))
            + tf.reduce_sum([0.4, 0.6] * moved(old, new[1])) - mean(fit[0] + fit[1]))

  def dual_loss():
    t, p, a, b = (tf.math.log(1 + tf.exp(tf.identity(v.value))) for v in other.duals)
    temperature = lambda t, bound, x: t * (bound + mean(tf.math.log(mean(tf.exp(x / t), 1))))
    return (temperature(t, 0.1, values) + temperature(p, 0.2, outside)
            + tf.reduce_sum(a * (0.3 - kl[0])) + tf.reduce_sum(b * (0.4 - kl[1])))

  descend(owned(other, "policy"), policy_loss)
  descend(owned(other, "duals"), dual_loss)
  descend(owned(other, "critic"), lambda: mean(
      BATCH.weight * (other.critic(STATES, BATCH.action)[:, 0] - target) ** 2 / 2))
  assert_step(agent, other, expected, losses)
