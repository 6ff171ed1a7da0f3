"""PPO: an on-policy agent for discrete or continuous actions.

    python -m experiments.ppo --gin_file=configs/ppo_cartpole.gin

Schulman et al. 2017 (arXiv:1707.06347): the clipped objective, over several epochs of minibatches
of a rollout, with generalized advantage estimates, which bootstrap where an episode was truncated.
"""

from collections.abc import Callable
from typing import Any

import replicator
from models.rl import agents
from models.rl.environments.environments import Environments
from models.rl.networks import distributions
from models.rl.networks.actor_critic import Policy
from models.rl.networks.distributions import Categorical, Gaussian
from models.rl.networks.observation_normalizer import Normalizer
from models.rl.replay.rollouts import Experience, Rollouts
from replicator import UsageError, app, random, schedules
from replicator.errors import above_zero

import gin
import keras
import tensorflow as tf


@gin.configurable(denylist=["environments"])
class PPO(tf.Module):
  """One training step: an update of the policy and one of the critic, from a minibatch.

  The optimizers are made in the gin scopes `policy` and `critic`.

  Args:
    environments: where the actor acts.
    optimizer: makes a Keras optimizer.
    clip_range: limit on the relative change of an action's probability; a number or a schedule.
    entropy_coefficient: weight of the policy's entropy, in nats.
    policy: makes the policy network; constructed and called like `Policy`.
    critic: makes the value network, with one output; constructed and called like `Policy`.
  """

  def __init__(self, environments: Environments,
               optimizer: Callable[[], keras.optimizers.Optimizer] = gin.REQUIRED,
               clip_range: schedules.Number = 0.2, entropy_coefficient: float = 0.0,
               policy: Callable[..., Any] = Policy, critic: Callable[..., Any] = Policy):
    super().__init__()
    if not schedules.is_schedule(clip_range):
      above_zero("PPO", clip_range=clip_range)
    if replicator.batch_size() == 1:
      raise UsageError("train.global_batch_size = 1: PPO normalizes advantages over a minibatch, "
                       "and that of a single step would always be 0; use 2 or more")
    shape, action_size = environments.observation_shape, environments.action_size
    self.clip_range, self.entropy_coefficient = clip_range, entropy_coefficient
    self.action_size, self.masked = action_size, environments.masked
    self.normalizer = Normalizer(shape)
    self.policy, self.critic = policy(shape, action_size), critic(shape, 1)
    self.actions = (Categorical(environments.choices) if environments.discrete else
                    Gaussian(action_size))
    self.replay = Rollouts(shape, action_size, environments.number, self.evaluate,
                           random.seed_of("rollouts"))
    self.actor = agents.make_actor(environments, self.replay, self.normalizer)
    self.optimizers = replicator.wrap_optimizers(
        optimizer, policy=[self.policy, *self.actions.trainable_variables], critic=self.critic)

  def __call__(self) -> dict[str, tf.Tensor]:
    """Takes one step, on this replica's part of the minibatch; returns scalars, float [].

    The scalars are the losses of the policy and of the critic; `value`, the mean value; the
    policy's `entropy`; `kl`, an estimate of the divergence of the policy from the one that acted;
    `clipped`, the fraction of actions whose probability changed by more than `clip_range`; and
    those of the actor.
    """
    batch = self.replay.minibatch()
    return {**self._update_policy(batch), **self._update_critic(batch), **self.actor.scalars()}

  @replicator.any_batch_size
  def act(self, observations: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Returns actions: `[n, *shape], [n, action_size] -> [n, action_size]`; noise ~ N(0, 1).

    With zero noise, these are the most probable actions.
    """
    return self.actions.draw(self._outputs(self._seen(observations)), noise)

  @replicator.any_batch_size
  def evaluate(self, observations: tf.Tensor, actions: tf.Tensor
               ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the networks' inputs, the actions' log probabilities [n], and values [n]."""
    seen = self._seen(observations)
    actions = tf.cast(actions, seen.dtype)
    return (seen, self.actions.log_probability(self._outputs(seen), actions),
            self.critic(seen)[:, 0])

  def _seen(self, observations: tf.Tensor) -> tf.Tensor:
    """Normalizes observations, except for a mask of actions."""
    seen = self.normalizer(observations)
    if not self.masked:
      return seen
    mask = tf.cast(observations[:, -self.action_size:], seen.dtype)
    return tf.concat([seen[:, :-self.action_size], mask], 1)

  def _outputs(self, seen: tf.Tensor) -> tf.Tensor:
    """Returns parameters of the action distribution: `[n, *shape] -> [n, action_size]`."""
    possible = seen[:, -self.action_size:] > 0 if self.masked else None
    return distributions.masked(self.policy(seen), possible)

  def _update_policy(self, batch: Experience) -> dict[str, tf.Tensor]:
    """Updates the policy on the clipped objective."""
    # Normalized over the global minibatch.
    advantage = batch.advantage - replicator.all_mean(tf.reduce_mean(batch.advantage))
    variance = replicator.all_mean(tf.reduce_mean(tf.square(advantage)))
    advantage /= tf.sqrt(variance) + 1e-8

    clip = replicator.scheduled(self.clip_range)

    def loss():
      outputs = self._outputs(batch.observation)
      moved = self.actions.log_probability(outputs, batch.action) - batch.log_probability
      ratio = tf.exp(moved)
      within = tf.clip_by_value(ratio, 1.0 - clip, 1.0 + clip)
      gain = tf.reduce_mean(tf.minimum(ratio * advantage, within * advantage))
      entropy = tf.reduce_mean(self.actions.entropy(outputs))
      return -gain - self.entropy_coefficient * entropy, {
          "entropy": entropy, "kl": tf.reduce_mean(ratio - 1.0 - moved),
          "clipped": tf.reduce_mean(tf.cast(tf.abs(ratio - 1.0) > clip, ratio.dtype))}

    value, found = self.optimizers["policy"].minimize(loss)
    return {"loss/policy": value, **found}

  def _update_critic(self, batch: Experience) -> dict[str, tf.Tensor]:
    """Moves the critic toward the returns."""
    def loss():
      values = self.critic(batch.observation)[:, 0]
      return 0.5 * tf.reduce_mean(tf.square(values - batch.target)), tf.reduce_mean(values)

    found, value = self.optimizers["critic"].minimize(loss)
    return {"loss/critic": found, "value": value}


@gin.configurable("train_ppo")
def ppo(workdir: str, environments: Callable[[], Environments] = Environments) -> None:
  """Trains PPO in `environments`, or resumes the run in `workdir`."""
  agents.train(PPO, environments, workdir)


if __name__ == "__main__":
  app.run(ppo)
