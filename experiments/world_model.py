"""A world model: an agent that learns from imagined experience, like DreamerV3.

    python -m experiments.world_model --gin_file=configs/world_model_cartpole_swingup.gin

Hafner et al. 2023 (arXiv:2301.04104), for continuous actions and observations that are vectors: a
recurrent state-space model learns from replayed sequences, and a policy and a critic learn from
sequences that it imagines. The optimizers are three Adams with clipped gradients, as in the paper's
first version. Later additions are left out: LaProp with adaptive clipping, the critic's loss on
replayed returns, and states stored in the replay, so a replayed sequence starts from a zero state.
"""

from collections.abc import Callable

import replicator
from models.rl import agents
from models.rl.environments.environments import Environments
from models.rl.networks import distributions, target_networks
from models.rl.networks.two_hot import TwoHot
from models.rl.replay.sequences import SequenceReplay, Sequences
from models.rl.world_model.mlp import NormalizedMLP
from models.rl.world_model.returns import ReturnRange, lambda_returns
from models.rl.world_model.world_model import Dream, WorldModel
from replicator import app, random
from replicator.errors import at_least_one, from_0_to_1

import gin
import keras
import tensorflow as tf


@gin.configurable(denylist=["environments"])
class Dreamer(tf.Module):
  """One training step: an update of the world model, of the policy and of the critic.

  The optimizers are made in the gin scopes `model`, `policy` and `critic`.

  Args:
    environments: where the actor acts.
    optimizer: makes a Keras optimizer.
    horizon: length of an imagined sequence in steps.
    discount: discount factor per step.
    return_lambda: see `lambda_returns`.
    entropy_coefficient: weight of the policy's entropy, in nats.
    tau: soft-update coefficient of the slow critic, the critic's target network.
    slow_weight: weight of the slow critic's values in the critic's loss.

  Attributes:
    memory_size: length of the policy's memory: the model's state and the last action.

  Raises:
    UsageError: a setting is invalid.
  """

  def __init__(self, environments: Environments,
               optimizer: Callable[[], keras.optimizers.Optimizer] = gin.REQUIRED,
               horizon: int = 15, discount: float = 1.0 - 1.0 / 333.0,
               return_lambda: float = 0.95, entropy_coefficient: float = 3e-4, tau: float = 0.02,
               slow_weight: float = 1.0):
    super().__init__()
    at_least_one("Dreamer", horizon=horizon)
    from_0_to_1("Dreamer", discount=discount, return_lambda=return_lambda)
    agents.check_actions(environments, discrete=False)
    shape, size = environments.observation_shape, environments.action_size
    self.horizon, self.discount, self.return_lambda = horizon, discount, return_lambda
    self.entropy_coefficient, self.slow_weight = entropy_coefficient, slow_weight
    self.model, self.returns, self.return_range = WorldModel(shape, size), TwoHot(), ReturnRange()
    self.state_size, self.action_size = self.model.rssm.size, size
    self.policy = NormalizedMLP(self.state_size, 2 * size, 0.01)
    self.critic = NormalizedMLP(self.state_size, self.returns.outputs, 0.0)
    self.memory_size = self.state_size + size
    self.replay = SequenceReplay(shape, size, environments.number,
                                 observation_dtype=environments.observation_dtype)
    self.actor = agents.make_actor(environments, self.replay, None, self.memory_size)
    self.optimizers = target_networks.wrap_optimizers(
        "Dreamer", optimizer, ["critic"], tau, model=self.model, policy=self.policy,
        critic=self.critic)

  def __call__(self) -> dict[str, tf.Tensor]:
    """Takes one step, on this replica's part of the batch; returns scalars, float [].

    The scalars are the terms of the model's loss; `value`, the mean imagined return; the policy's
    `entropy`; the critic's loss; `return_range`; and those of the actor and of the replay.
    """
    batch = self.replay.sample(replicator.batch_size())
    states, scalars = self._update_model(batch)
    dream = self._imagine(states)
    # Steps after the end of an episode do not count, imagined or replayed.
    discount = self.discount * dream.continues
    alive = 1.0 - tf.cast(tf.reshape(batch.terminated, [-1, 1]), discount.dtype)
    weight = tf.math.cumprod(tf.concat([alive, discount[:, :-1]], 1), 1)
    values = self.returns.mean(self.critic(dream.state))
    returns = lambda_returns(dream.reward, discount, values[:, 1:], self.return_lambda)
    width = self.return_range.update(returns)
    entropy = self._update_policy(dream, weight, (returns - values[:, :-1]) / width)
    loss = self._update_critic(dream.state[:, :-1], weight, returns)
    return {**scalars, "value": tf.reduce_mean(returns), "entropy": entropy,
            "loss/critic": loss, "return_range": width, **self.actor.scalars(),
            **self.replay.scalars()}

  @replicator.any_batch_size
  def act(self, observations: tf.Tensor, noise: tf.Tensor, memory: tf.Tensor
          ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns actions in [-1, 1] `[n, a]`, and the new memory `[n, memory_size]`.

    The latents are the most probable ones. The paper samples them, but an actor draws nothing
    except `noise`.

    Args:
      observations: `[n, *shape]`.
      noise: N(0, 1), `[n, a]`.
      memory: `[n, memory_size]`; zeros at the beginning of an episode.
    """
    state, action = tf.split(memory, [self.state_size, self.action_size], 1)
    state = self.model.recognize(state, action, observations)
    mean, deviation = self._distribution(state)
    action = tf.clip_by_value(mean + deviation * tf.cast(noise, mean.dtype), -1.0, 1.0)
    return action, tf.concat([state, action], 1)

  def _distribution(self, states: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns means and standard deviations of normal action distributions: `[..., a]` each."""
    mean, raw = tf.split(self.policy(states), 2, -1)
    return tf.tanh(mean), 0.1 + 0.9 * tf.sigmoid(raw + 2.0)

  def _update_model(self, batch: Sequences) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Updates the model on sequences; returns its states `[n, t, size]`, and scalars."""
    n, t = batch.reward.shape
    uniform = random.uniform("posterior", [n, t, self.model.rssm.latents])
    _, states, terms = self.optimizers["model"].minimize(lambda: self.model.loss(batch, uniform))
    return states, terms

  def _imagine(self, states: tf.Tensor) -> Dream:
    """Imagines n t sequences of `horizon` steps, one from each state of `[n, t, size]`."""
    n, t = states.shape[:2]
    flat = lambda x: tf.reshape(x, [n * t, *x.shape[2:]])
    noise = flat(random.normal("policy", [n, t, self.horizon, self.action_size]))
    uniform = flat(random.uniform("prior", [n, t, self.horizon, self.model.rssm.latents]))

    def act(state: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
      mean, deviation = self._distribution(state)
      return mean + deviation * noise

    return self.model.imagine(flat(states), act, noise, uniform)

  def _update_policy(self, dream: Dream, weight: tf.Tensor, advantage: tf.Tensor) -> tf.Tensor:
    """Updates the policy on the advantages `[m, t]`; returns its mean entropy []."""
    def loss():
      mean, deviation = self._distribution(dream.state[:, :-1])
      log_deviation = tf.math.log(deviation)
      density = distributions.log_density((dream.action - mean) / deviation, log_deviation)
      entropy = distributions.entropy(log_deviation)
      gain = advantage * density + self.entropy_coefficient * entropy
      return -tf.reduce_mean(weight * gain), tf.reduce_mean(entropy)

    return self.optimizers["policy"].minimize(loss)[1]

  def _update_critic(self, states: tf.Tensor, weight: tf.Tensor, returns: tf.Tensor) -> tf.Tensor:
    """Moves values toward the returns `[m, t]` and the slow critic's values; returns the loss."""
    with self.optimizers["critic"].averaged_weights():
      slow = self.returns.mean(self.critic(states))

    def loss():
      logits = self.critic(states)
      return tf.reduce_mean(weight * (self.returns.losses(returns, logits)
                                      + self.slow_weight * self.returns.losses(slow, logits)))

    return self.optimizers["critic"].minimize(loss)


@gin.configurable("train_world_model")
def world_model(workdir: str, environments: Callable[[], Environments] = Environments) -> None:
  """Trains a world model and its agent in `environments`, or resumes the run in `workdir`."""
  agents.train(Dreamer, environments, workdir)


if __name__ == "__main__":
  app.run(world_model)
