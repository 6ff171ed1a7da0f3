"""A learned model of an environment: its networks, its loss, and imagined sequences.

Hafner et al. 2023 (arXiv:2301.04104), for vector observations.
"""

from collections.abc import Callable
from typing import NamedTuple

from models.rl.networks.actor_critic import Trained
from models.rl.networks.two_hot import TwoHot, symlog
from models.rl.replay.sequences import Sequences
from models.rl.world_model.mlp import NormalizedMLP
from models.rl.world_model.rssm import RSSM, divergence
from replicator import UsageError

import gin
import keras
import tensorflow as tf


class Dream(NamedTuple):
  """n imagined sequences of t steps from given states."""

  state: tf.Tensor  # [n, t + 1, size], beginning with the given states.
  action: tf.Tensor  # [n, t, a], at the first t of these states.
  reward: tf.Tensor  # [n, t], for each action.
  continues: tf.Tensor  # [n, t], the probability that the episode continues after each action.


@gin.configurable(denylist=["observation_shape", "action_size"])
class WorldModel(Trained):
  """Encoder, recurrent state-space model, decoder, and heads for rewards and episode ends.

  Args:
    observation_shape: shape of one observation, a vector.
    action_size: length of an action.
    embedding: length of an encoded observation.
    dynamics_weight: weight of the divergence that moves the prior toward the posterior.
    representation_weight: weight of the divergence that moves the posterior toward the prior.
    free_nats: smaller divergences count as this value, and have no gradient.

  Attributes:
    rssm: the `RSSM`.

  Raises:
    UsageError: an observation is not a vector.
  """

  def __init__(self, observation_shape: tuple[int, ...], action_size: int, embedding: int = 64,
               dynamics_weight: float = 1.0, representation_weight: float = 0.1,
               free_nats: float = 1.0):
    super().__init__()
    if len(observation_shape) != 1:
      raise UsageError(f"WorldModel: observations of shape {list(observation_shape)}; it needs "
                       "vectors, so leave out Environments.pixels")
    (size,) = observation_shape
    self._weights = dynamics_weight, representation_weight
    self._free_nats, self._rewards = free_nats, TwoHot()
    self.encoder = NormalizedMLP(size, embedding)
    self.rssm = RSSM(embedding, action_size)
    self.decoder = NormalizedMLP(self.rssm.size, size)
    # Initial predictions of exactly 0 do not teach the critic nonexistent rewards.
    self.reward = NormalizedMLP(self.rssm.size, self._rewards.outputs, 0.0)
    self.continues = NormalizedMLP(self.rssm.size, 1)

  def recognize(self, state: tf.Tensor, action: tf.Tensor, observations: tf.Tensor) -> tf.Tensor:
    """Infers the state after action and observation: `[n, size], [n, a], [n, c] -> [n, size]`."""
    return self.rssm.recognize(state, action, self._encoded(observations))

  def _encoded(self, observations: tf.Tensor) -> tf.Tensor:
    return self.encoder(symlog(tf.cast(observations, keras.config.floatx())))

  def loss(self, batch: Sequences, uniform: tf.Tensor
           ) -> tuple[tf.Tensor, tf.Tensor, dict[str, tf.Tensor]]:
    """Returns the loss [], states after each observation `[n, t, size]`, and loss terms, [] each.

    The terms are means over all observations: `loss/reconstruction`, squared errors in symlog
    space; `loss/reward` and `loss/continues`, negative log likelihoods; and `divergence`, of the
    posterior from the prior, in nats.

    Args:
      batch: n sequences.
      uniform: `[n, t, l]`, in [0, 1), for the draws of latents.
    """
    found = self.rssm.observe(self._encoded(batch.observation), batch.action, batch.is_first,
                              uniform)
    decoded, logit = self.decoder(found.state), self.continues(found.state)[..., 0]
    continues = tf.cast(~batch.terminated, logit.dtype)
    terms = {
        "loss/reconstruction": tf.reduce_sum(
            tf.square(decoded - symlog(batch.observation)), -1),
        "loss/reward": self._rewards.losses(batch.reward, self.reward(found.state)),
        "loss/continues": tf.nn.sigmoid_cross_entropy_with_logits(continues, logit)}
    fixed = tf.stop_gradient(found.posterior), tf.stop_gradient(found.prior)
    divergences = divergence(fixed[0], found.prior), divergence(found.posterior, fixed[1])
    losses = sum(terms.values()) + sum(
        weight * tf.maximum(each, self._free_nats)
        for weight, each in zip(self._weights, divergences, strict=True))
    terms["divergence"] = divergences[0]
    return (tf.reduce_mean(losses), found.state,
            {name: tf.reduce_mean(term) for name, term in terms.items()})

  def imagine(self, state: tf.Tensor, act: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
              noise: tf.Tensor, uniform: tf.Tensor) -> Dream:
    """Imagines sequences from given states.

    Args:
      state: `[n, size]`.
      act: chooses actions, from states and noise: `[n, size], [n, a] -> [n, a]`.
      noise: `[n, t, a]`.
      uniform: `[n, t, l]`, in [0, 1), for the draws of latents.
    """
    states, actions = [state], []
    for i in range(noise.shape[1]):
      actions.append(act(states[-1], noise[:, i]))
      states.append(self.rssm.imagine(states[-1], actions[-1], uniform[:, i]))
    states = tf.stack(states, 1)
    following = states[:, 1:]
    return Dream(states, tf.stack(actions, 1), self._rewards.mean(self.reward(following)),
                 tf.sigmoid(self.continues(following)[..., 0]))
