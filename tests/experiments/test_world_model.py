"""The world model: a step's losses and updates are those of the paper's formulas, in NumPy.

Derivatives are those of an imaginary step. A stopped gradient is the value before that step, which
is what `real` gives.
"""

from collections.abc import Callable, Iterator

from experiments import world_model
from models.rl.replay.sequences import Sequences
from replicator import random
from replicator.step import context
from tests.experiments.line import assert_scalars, gradients_of, one_step
from tests.experiments.test_agent_updates import lone_agent
from tests.models.rl.networks.test_two_hot import two_hot

import gin
import numpy as np
import pytest
import tensorflow as tf

N, T, HORIZON, SHAPE, ACTIONS = 2, 4, 3, (2,), 1
D, L, K, UNITS, BINS = 3, 2, 3, 3, 5
MIX, RATE, DISCOUNT, LAMBDA, ENTROPY, SLOW = 0.2, 0.5, 0.9, 0.8, 0.3, 0.7
DYNAMICS, REPRESENTATION, FREE, DECAY, TAU = 1.0, 0.1, 0.3, 0.99, 0.1
SETTINGS = [
    f"RSSM.deterministic = {D}", f"RSSM.latents = {L}", f"RSSM.classes = {K}",
    f"RSSM.units = {UNITS}", f"RSSM.uniform_mix = {MIX}", f"NormalizedMLP.units = {UNITS}",
    "NormalizedMLP.layers = 1", "WorldModel.embedding = 2", f"WorldModel.free_nats = {FREE}",
    f"TwoHot.bins = {BINS}", "TwoHot.limit = 2.0",
    f"SequenceReplay.length = {T}", "Replay.capacity = 20"]
_draw = np.random.default_rng(0)
BATCH = Sequences(
    _draw.normal(0.0, 2.0, [N, T, *SHAPE]), _draw.uniform(-1, 1, [N, T, ACTIONS]),
    _draw.normal(0.0, 2.0, [N, T]), np.array([[False] * 4, [False, False, True, False]]),
    np.array([[False, True, False, False], [False, False, False, True]]))
ENDS = np.linspace(-2.0, 2.0, BINS)
PLACES = np.sign(ENDS) * np.expm1(np.abs(ENDS))

real = np.real
sigmoid = lambda x: 1 / (1 + np.exp(-x))
symlog = lambda x: np.sign(x) * np.log(1 + np.abs(x))
log_softmax = lambda x: x - np.log(np.exp(x).sum(-1, keepdims=True))
expected = lambda logits: np.exp(log_softmax(logits)) @ PLACES


def hidden(x: np.ndarray, weights: Iterator) -> np.ndarray:
  """Dense, layer normalization and SiLU."""
  x = norm(x @ next(weights), weights)
  return x * sigmoid(x)


def norm(x: np.ndarray, weights: Iterator) -> np.ndarray:
  x = x - x.mean(-1, keepdims=True)
  x = x / np.sqrt((x ** 2).mean(-1, keepdims=True) + 1e-3)
  return x * next(weights) + next(weights)


def mlp(weights: list) -> Callable[[np.ndarray], np.ndarray]:
  def call(x):
    left = iter(weights)
    return hidden(x, left) @ next(left) + next(left)
  return call


def cross_entropy(numbers: np.ndarray, logits: np.ndarray) -> np.ndarray:
  target = np.array([two_hot(x, PLACES) for x in real(numbers).ravel()]).reshape(logits.shape)
  return -(target * log_softmax(logits)).sum(-1)


def divergence(p: np.ndarray, q: np.ndarray) -> np.ndarray:
  return (np.exp(p) * (p - q)).sum((-2, -1))


def nats(x: np.ndarray) -> np.ndarray:
  return np.where(real(x) > FREE, x, FREE)


class Model:
  """The formulas of a world model with given weights."""

  def __init__(self, weights: list[np.ndarray]):
    w = list(weights)
    take = lambda n: [w.pop(0) for _ in range(n)]
    self.encoder, self.inputs, self.gates = mlp(take(5)), take(3), take(3)
    self.prior, self.posterior, self.decoder, self.reward, self.goes_on = (
        mlp(take(5)) for _ in range(5))
    assert not w

  def recur(self, h, z, action):
    x = hidden(np.concatenate([z, np.clip(action, -1, 1)], 1), iter(self.inputs))
    left = iter(self.gates)
    reset, candidate, update = np.split(
        norm(np.concatenate([x, h], 1) @ next(left), left), 3, 1)
    update = sigmoid(update - 1)
    return update * np.tanh(sigmoid(reset) * candidate) + (1 - update) * h

  def latents(self, logits):
    probabilities = np.exp(log_softmax(logits.reshape([-1, L, K])))
    return np.log((1 - MIX) * probabilities + MIX / K)

  def drawn(self, log_probabilities, uniform):
    """One-hot vectors with the gradient of the probabilities."""
    p = np.exp(log_probabilities)
    number = (np.cumsum(real(p), -1) <= uniform[..., np.newaxis]).sum(-1)
    return (np.eye(K)[number] + p - real(p)).reshape([-1, L * K])

  def observed(self, batch, uniform):
    h, z = np.zeros([N, D]), np.zeros([N, L * K])
    found = []
    for t in range(T):
      kept = (~batch.is_first[:, t, np.newaxis]) * float(t > 0)
      h = self.recur(kept * h, kept * z, kept * batch.action[:, t])
      seen = self.encoder(symlog(batch.observation[:, t]))
      posterior = self.latents(self.posterior(np.concatenate([h, seen], 1)))
      z = self.drawn(posterior, uniform[:, t])
      found.append((np.concatenate([h, z], 1), posterior, self.latents(self.prior(h))))
    return [np.stack(parts, 1) for parts in zip(*found, strict=True)]

  def losses(self, batch, uniform):
    """The loss, its terms, and the states."""
    states, posterior, prior = self.observed(batch, uniform)
    goes_on = self.goes_on(states)[..., 0]
    terms = {
        "loss/reconstruction": ((self.decoder(states) - symlog(batch.observation)) ** 2).sum(-1),
        "loss/reward": cross_entropy(batch.reward, self.reward(states)),
        "loss/continues": -np.log(np.where(batch.terminated, 1 - sigmoid(goes_on),
                                           sigmoid(goes_on)))}
    loss = sum(terms.values()) + (DYNAMICS * nats(divergence(real(posterior), prior))
                                  + REPRESENTATION * nats(divergence(posterior, real(prior))))
    terms["divergence"] = divergence(real(posterior), prior)
    return loss.mean(), {name: real(term.mean()) for name, term in terms.items()}, real(states)

  def imagined(self, state, policy, noise, uniform):
    states, actions = [state], []
    for t in range(HORIZON):
      mean, deviation = normal(policy(states[-1]))
      actions.append(mean + deviation * noise[:, t])
      h = self.recur(states[-1][:, :D], states[-1][:, D:], actions[-1])
      states.append(np.concatenate([h, self.drawn(self.latents(self.prior(h)), uniform[:, t])], 1))
    states = np.stack(states, 1)
    return (states, np.stack(actions, 1), expected(self.reward(states[:, 1:])),
            sigmoid(self.goes_on(states[:, 1:])[..., 0]))


def normal(outputs):
  mean, raw = np.split(outputs, 2, -1)
  return np.tanh(mean), 0.1 + 0.9 * sigmoid(raw + 2)


@pytest.fixture
def agent(float64, monkeypatch):
  """An agent with random weights and another slow critic, which samples `BATCH`."""
  gin.parse_config(SETTINGS)
  agent = lone_agent(lambda *parts: world_model.Dreamer(
      *parts, HORIZON, DISCOUNT, return_lambda=LAMBDA, entropy_coefficient=ENTROPY, tau=TAU,
      slow_weight=SLOW), SHAPE, ACTIONS, N, Sequences(*map(tf.constant, BATCH)), monkeypatch)
  agent.return_range.average.assign(1.5)
  return agent


def values_of(variables) -> list[np.ndarray]:
  return [v.numpy() for v in variables]


def test_a_step_makes_the_updates_of_the_formulas(agent):
  owned = {name: agent.optimizers[name].variables_updated for name in agent.optimizers}
  before = {name: values_of(variables) for name, variables in owned.items()}
  averages = values_of(agent.optimizers["critic"].averages)
  slow = mlp(averages)
  with context.entered(tf.constant(0, tf.int64)):
    of_posterior = random.uniform("posterior", [N, T, L]).numpy()
    noise = random.normal("policy", [N, T, HORIZON, ACTIONS]).numpy().reshape([N * T, HORIZON, -1])
    of_prior = random.uniform("prior", [N, T, HORIZON, L]).numpy().reshape([N * T, HORIZON, L])
  scalars = one_step(agent)
  after = {name: values_of(variables) for name, variables in owned.items()}
  for old, new, found in zip(averages, after["critic"], agent.optimizers["critic"].averages,
                             strict=True):
    np.testing.assert_allclose(found, TAU * new + (1 - TAU) * old, rtol=1e-12)

  _, terms, states = Model(before["model"]).losses(BATCH, of_posterior)
  policy, critic = mlp(before["policy"]), mlp(before["critic"])
  # The policy and the critic learn in the updated model.
  dream, actions, reward, goes_on = Model(after["model"]).imagined(
      states.reshape([N * T, -1]), policy, noise, of_prior)
  discount, value = DISCOUNT * goes_on, expected(critic(dream))
  returns = [value[:, -1]]
  for t in reversed(range(HORIZON)):
    returns.insert(0, reward[:, t] + discount[:, t] * (
        (1 - LAMBDA) * value[:, t + 1] + LAMBDA * returns[0]))
  returns = np.stack(returns[:-1], 1)
  weight = np.cumprod(np.concatenate([~BATCH.terminated.reshape([-1, 1]), discount[:, :-1]], 1), 1)
  width = DECAY * 1.5 + (1 - DECAY) * np.subtract(*np.percentile(returns, [95, 5]))
  seen = dream[:, :-1]

  def policy_loss(weights):
    mean, deviation = normal(mlp(weights)(seen))
    density = np.log(np.exp(-((actions - mean) / deviation) ** 2 / 2)
                     / (deviation * np.sqrt(2 * np.pi)))[..., 0]
    gain = (returns - value[:, :-1]) / width * density + ENTROPY * entropy_of(deviation)
    return -(weight * gain).mean()

  def critic_loss(weights):
    logits = mlp(weights)(seen)
    return (weight * (cross_entropy(returns, logits)
                      + SLOW * cross_entropy(expected(slow(seen)), logits))).mean()

  assert_scalars(scalars, {
      **terms, "value": returns.mean(), "return_range": width,
      "entropy": entropy_of(normal(policy(seen))[1]).mean(),
      "loss/critic": critic_loss(before["critic"])})
  for name, loss in (("policy", policy_loss), ("critic", critic_loss), (
      "model", lambda weights: Model(weights).losses(BATCH, of_posterior)[0])):
    for old, new, gradient in zip(before[name], after[name], gradients_of(loss, before[name]),
                                  strict=True):
      np.testing.assert_allclose(old - new, RATE * gradient, rtol=1e-8, atol=1e-11, err_msg=name)


def entropy_of(deviation: np.ndarray) -> np.ndarray:
  return 0.5 * np.log(2 * np.pi * np.e * deviation ** 2)[..., 0]


def test_the_policy_remembers_the_state_and_its_action(agent):
  model, policy = Model(values_of(agent.model.trainable_variables)), mlp(
      values_of(agent.policy.trainable_variables))
  observations = np.random.default_rng(3).normal(size=[2, 5, *SHAPE]).astype(np.float32)
  noise = np.array([[0.0], [3.0], [0.1], [-3.0], [1.0]], np.float32)
  h, z, action = np.zeros([5, D]), np.zeros([5, L * K]), np.zeros([5, ACTIONS])
  memory = np.zeros([5, agent.memory_size])
  for seen in observations:
    h = model.recur(h, z, action)
    embedding = model.encoder(symlog(seen.astype(np.float64)))
    best = model.latents(model.posterior(np.concatenate([h, embedding], 1))).argmax(-1)
    z = np.eye(K)[best].reshape([5, -1])
    mean, deviation = normal(policy(np.concatenate([h, z], 1)))
    action = np.clip(mean + deviation * noise, -1, 1)
    found, memory = agent.act(seen, noise, memory)
    np.testing.assert_allclose(found, action, rtol=1e-9)
    np.testing.assert_allclose(memory, np.concatenate([h, z, action], 1), rtol=1e-9, atol=1e-12)
  assert (np.abs(action) == 1).any() and (np.abs(action) < 1).any()
