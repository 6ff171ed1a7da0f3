"""The recurrent state-space model, with a deterministic and a stochastic part of the state.

Hafner et al. 2019 (arXiv:1811.04551), with the discrete latents of Hafner et al. 2021
(arXiv:2010.02193) and the settings of 2023 (arXiv:2301.04104).
"""

from typing import NamedTuple

from models.rl.networks.actor_critic import Trained
from models.rl.world_model.mlp import NormalizedMLP, normalized
from replicator.errors import at_least_one, from_0_to_1

import gin
import keras
import tensorflow as tf


class Observed(NamedTuple):
  """The states of n sequences of t observations, and the distributions of their latents."""

  state: tf.Tensor  # [n, t, size], drawn after the observations.
  posterior: tf.Tensor  # [n, t, l, k], log probabilities of the latents after each observation.
  prior: tf.Tensor  # [n, t, l, k], the same, before each observation.


@gin.configurable(denylist=["embedding_size", "action_size"])
class RSSM(Trained):
  """A model of sequences with a state s = (h, z).

      h_t = f(h_(t - 1), z_(t - 1), a_(t - 1))    the recurrence, a GRU
      z_t ~ p(z | h_t)                            the prior, for imagination
      z_t ~ q(z | h_t, x_t)                       the posterior, given an observation

  A state is one vector `[..., size]`: h `[d]`, and z, l one-hot vectors of k classes. The initial
  state is all zeros.

  Args:
    embedding_size: length of an encoded observation.
    action_size: length of an action.
    deterministic: d.
    latents: l.
    classes: k.
    units: units of the hidden layers.
    uniform_mix: weight of a uniform distribution mixed into that of each latent, from 0 to 1.

  Attributes:
    size: length of a state, d + l k.
    latents: l.

  Raises:
    UsageError: a setting is invalid.
  """

  def __init__(self, embedding_size: int, action_size: int, deterministic: int = 128,
               latents: int = 8, classes: int = 8, units: int = 64, uniform_mix: float = 0.01):
    super().__init__()
    at_least_one("RSSM", deterministic=deterministic, latents=latents, classes=classes)
    from_0_to_1("RSSM", uniform_mix=uniform_mix)
    self.latents, self._classes, self._mix = latents, classes, uniform_mix
    self._deterministic, self._stochastic = deterministic, latents * classes
    self.size = deterministic + self._stochastic
    self._input = keras.Sequential(normalized(units))
    self._input.build((None, self._stochastic + action_size))
    self._gates = keras.Sequential([
        keras.layers.Dense(3 * deterministic, use_bias=False),
        keras.layers.LayerNormalization(epsilon=1e-3)])
    self._gates.build((None, units + deterministic))
    self._prior = NormalizedMLP(deterministic, self._stochastic, units=units, layers=1)
    self._posterior = NormalizedMLP(deterministic + embedding_size, self._stochastic, units=units,
                                    layers=1)

  def recur(self, state: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
    """Returns the next h: `[n, size], [n, a] -> [n, d]`; actions are clipped to [-1, 1]."""
    h, z = tf.split(state, [self._deterministic, self._stochastic], 1)
    inputs = self._input(tf.concat([z, tf.clip_by_value(action, -1.0, 1.0)], 1))
    reset, candidate, update = tf.split(self._gates(tf.concat([inputs, h], 1)), 3, 1)
    candidate = tf.tanh(tf.sigmoid(reset) * candidate)
    update = tf.sigmoid(update - 1.0)  # Initially keeps more of h.
    return update * candidate + (1.0 - update) * h

  def prior(self, h: tf.Tensor) -> tf.Tensor:
    """Returns log probabilities of latents before an observation: `[..., d] -> [..., l, k]`."""
    return self._mixed(self._prior(h))

  def posterior(self, h: tf.Tensor, embedding: tf.Tensor) -> tf.Tensor:
    """Returns log probabilities after an observation: `[..., d], [..., e] -> [..., l, k]`."""
    return self._mixed(self._posterior(tf.concat([h, embedding], -1)))

  def _mixed(self, logits: tf.Tensor) -> tf.Tensor:
    """Mixes in a uniform distribution to keep divergences finite: `[..., l k] -> [..., l, k]`."""
    logits = tf.reshape(logits, [-1, *logits.shape[1:-1], self.latents, self._classes])
    return tf.math.log((1.0 - self._mix) * tf.nn.softmax(logits) + self._mix / self._classes)

  def draw(self, log_probabilities: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """Draws latents, with the gradient of their probabilities: `[n, l, k], [n, l] -> [n, l k]`.

    The gradient is passed straight through the draw to the probabilities (Bengio et al. 2013,
    arXiv:1308.3432).

    Args:
      log_probabilities: of the classes of each latent.
      uniform: in [0, 1).
    """
    probabilities = tf.exp(log_probabilities)
    # The last class absorbs rounding errors of the sum.
    ends = tf.cumsum(probabilities, -1)[..., :-1]
    drawn = tf.reduce_sum(tf.cast(ends <= uniform[..., tf.newaxis], tf.int32), -1)
    z = tf.one_hot(drawn, self._classes, dtype=probabilities.dtype)
    z += probabilities - tf.stop_gradient(probabilities)
    return tf.reshape(z, [-1, self._stochastic])

  def imagine(self, state: tf.Tensor, action: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """Draws the next state from the prior: `[n, size], [n, a], [n, l] -> [n, size]`."""
    h = self.recur(state, action)
    return tf.concat([h, self.draw(self.prior(h), uniform)], 1)

  def recognize(self, state: tf.Tensor, action: tf.Tensor, embedding: tf.Tensor) -> tf.Tensor:
    """Returns the state with the likeliest latents: `[n, size], [n, a], [n, e] -> [n, size]`."""
    h = self.recur(state, action)
    best = tf.argmax(self.posterior(h, embedding), -1)
    z = tf.one_hot(best, self._classes, dtype=h.dtype)
    return tf.concat([h, tf.reshape(z, [-1, self._stochastic])], 1)

  def observe(self, embeddings: tf.Tensor, actions: tf.Tensor, is_first: tf.Tensor,
              uniform: tf.Tensor) -> Observed:
    """Infers the states of n sequences of t observations, starting from zero states.

    Args:
      embeddings: `[n, t, e]`, of the observations.
      actions: `[n, t, a]`, before each observation.
      is_first: bool `[n, t]`, whether an episode begins there, which resets the state.
      uniform: `[n, t, l]`, in [0, 1), for the draws.
    """
    n, t = actions.shape[:2]
    state = tf.zeros([n, self.size], actions.dtype)
    states, posteriors = [], []
    for i in range(t):
      # The first observation of a sequence also starts from zeros.
      kept = tf.cast(~is_first[:, i, tf.newaxis], state.dtype) * float(i > 0)
      h = self.recur(kept * state, kept * actions[:, i])
      posterior = self.posterior(h, embeddings[:, i])
      state = tf.concat([h, self.draw(posterior, uniform[:, i])], 1)
      states.append(state)
      posteriors.append(posterior)
    states = tf.stack(states, 1)
    prior = self.prior(states[..., :self._deterministic])
    return Observed(states, tf.stack(posteriors, 1), prior)


def divergence(p: tf.Tensor, q: tf.Tensor) -> tf.Tensor:
  """Returns KL(p, q) in nats, summed over latents: log probabilities `[..., l, k] -> [...]`."""
  return tf.reduce_sum(tf.exp(p) * (p - q), [-2, -1])
