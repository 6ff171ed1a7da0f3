"""The recurrent state-space model: its draws and their gradients, and what it forgets."""

from models.rl.world_model.rssm import RSSM, divergence

import numpy as np
import tensorflow as tf

RNG = np.random.default_rng(0)


def made(**settings) -> RSSM:
  return RSSM(4, 2, **{"deterministic": 5, "latents": 3, "classes": 4, "units": 6, **settings})


def normalized(x: np.ndarray) -> np.ndarray:
  return x - np.log(np.exp(x).sum(-1, keepdims=True))


def test_latents_are_drawn_by_their_probabilities(float64):
  rssm = made()
  log_probabilities = normalized(RNG.normal(size=[1, 3, 4]))
  uniform = RNG.uniform(size=[20_000, 3])
  drawn = rssm.draw(tf.constant(np.repeat(log_probabilities, 20_000, 0)), tf.constant(uniform))
  rows = drawn.numpy().reshape([-1, 3, 4])
  np.testing.assert_allclose(rows.sum(-1), 1.0, rtol=1e-12)
  np.testing.assert_allclose(rows.max(-1), 1.0, rtol=1e-12)
  np.testing.assert_allclose(rows.mean(0), np.exp(log_probabilities[0]), atol=0.015)


def test_the_gradient_goes_straight_through_a_draw_to_the_probabilities(float64):
  rssm, weights = made(), RNG.normal(size=[2, 12])
  logits = tf.constant(normalized(RNG.normal(size=[2, 3, 4])))
  with tf.GradientTape() as tape:
    tape.watch(logits)
    loss = tf.reduce_sum(weights * rssm.draw(logits, tf.constant(RNG.uniform(size=[2, 3]))))
  # The derivative of sum w exp(logit).
  np.testing.assert_allclose(tape.gradient(loss, logits),
                             weights.reshape([2, 3, 4]) * np.exp(logits), rtol=1e-12)


def test_every_class_has_a_share_of_the_uniform_distribution(float64):
  rssm = made(uniform_mix=0.2)
  h, embedding = tf.constant(1e4 * RNG.normal(size=[7, 5])), tf.zeros([7, 4], tf.float64)
  for found in (rssm.prior(h), rssm.posterior(h, embedding)):
    probabilities = np.exp(found)
    np.testing.assert_allclose(probabilities.sum(-1), 1.0, rtol=1e-12)
    assert probabilities.min() >= 0.05 - 1e-12


def observed(rssm: RSSM, embeddings: np.ndarray, actions: np.ndarray, is_first: np.ndarray,
             uniform: np.ndarray) -> np.ndarray:
  return rssm.observe(*map(tf.constant, (embeddings, actions, is_first, uniform))).state.numpy()


def test_an_episode_begins_without_a_past_and_later_observations_change_nothing(float64):
  rssm = made()
  embeddings, actions, uniform = (RNG.normal(size=[2, 6, 4]), RNG.uniform(-1, 1, [2, 6, 2]),
                                  RNG.uniform(size=[2, 6, 3]))
  is_first = np.zeros([2, 6], bool)
  is_first[0, 3] = True
  states = observed(rssm, embeddings, actions, is_first, uniform)
  cut = observed(rssm, embeddings[:, 3:], actions[:, 3:], is_first[:, 3:], uniform[:, 3:])
  np.testing.assert_allclose(states[0, 3:], cut[0], rtol=1e-12)
  assert np.abs(states[1, 3:] - cut[1]).max() > 1e-3
  early = observed(rssm, embeddings[:, :2], actions[:, :2], is_first[:, :2], uniform[:, :2])
  np.testing.assert_allclose(states[:, :2], early, rtol=1e-12)


def test_to_recognize_is_to_observe_with_the_most_probable_latents(float64):
  rssm = made()
  embeddings, actions = RNG.normal(size=[2, 3, 4]), RNG.uniform(-3, 3, [2, 3, 2])
  state = tf.zeros([2, rssm.size], tf.float64)
  for i in range(3):
    before, action = state, tf.constant(actions[:, i])
    state = rssm.recognize(before, action, tf.constant(embeddings[:, i]))
    h = rssm.recur(before, tf.clip_by_value(action, -1.0, 1.0))
    np.testing.assert_allclose(state[:, :5], h, rtol=1e-12)
    best = rssm.posterior(h, tf.constant(embeddings[:, i])).numpy().argmax(-1)
    np.testing.assert_array_equal(state[:, 5:], np.eye(4)[best].reshape([2, 12]))


def test_divergences_are_those_of_the_definition():
  p, q = normalized(RNG.normal(size=[2, 5, 3, 4]))
  np.testing.assert_allclose(divergence(p, q), (np.exp(p) * (p - q)).sum((1, 2)), rtol=1e-12)
  assert (divergence(p, q).numpy() > 0).all()
