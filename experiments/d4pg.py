"""D4PG: an actor-critic agent for continuous control, with a distributional critic.

    python -m experiments.d4pg --gin_file=configs/d4pg_pendulum.gin

Barth-Maron et al. 2018 (arXiv:1804.08617), with the settings of Acme's agent: a critic that learns
the distribution of n-step returns, a deterministic policy that maximizes its mean, target networks
for both, and Gaussian exploration. With `D4PG.returns = @ExpectedReturns` it is DDPG.
"""

from collections.abc import Callable, Mapping
from typing import Any

import replicator
from models.rl import agents
from models.rl.environments.environments import Environments
from models.rl.networks import target_networks
from models.rl.networks.actor_critic import Critic, Policy
from models.rl.networks.critic_heads import CategoricalReturns, ExpectedReturns
from models.rl.replay.replay import Transitions
from replicator import app, schedules
from replicator.errors import above_zero

import gin
import keras
import tensorflow as tf


@gin.configurable(denylist=["environments"])
class D4PG(tf.Module):
  """One training step: an update of the critic and one of the policy, from replayed experience.

  The two optimizers are made in the gin scopes `critic` and `policy`. By default the networks are
  copied to the target networks every 100 steps. For soft updates, set `tau` to 0.005 and
  `target_update_period` to 1.

  Args:
    environments: where the actor acts.
    optimizer: makes a Keras optimizer.
    returns: makes the head of the critic: `CategoricalReturns` or `ExpectedReturns`.
    noise: standard deviation of the exploration noise, for actions in [-1, 1]; a number or a
      schedule.
    clip_noise: whether noisy actions are clipped to [-1, 1]. If not, as in Acme's agent, only the
      environment clips them, and the replay stores them unclipped.
    tau: soft-update coefficient of the target networks; 1 copies the networks.
    target_update_period: steps between updates of the target networks.
    action_gradient_norm: maximum norm of the gradient of the value with respect to an action.
    policy: makes the policy network; constructed and called like `Policy`.
    critic: makes the critic; constructed and called like `Critic`.
  """

  def __init__(self, environments: Environments,
               optimizer: Callable[[], keras.optimizers.Optimizer] = gin.REQUIRED,
               returns: Callable[[], CategoricalReturns | ExpectedReturns] = CategoricalReturns,
               noise: schedules.Number = 0.3, clip_noise: bool = True,
               tau: float = 1.0, target_update_period: int = 100,
               action_gradient_norm: float = 1.0, policy: Callable[..., Any] = Policy,
               critic: Callable[..., Any] = Critic):
    super().__init__()
    shape, action_size = environments.observation_shape, environments.action_size
    self.returns = returns()
    self.noise, self.clip_noise = noise, clip_noise
    above_zero("D4PG", action_gradient_norm=action_gradient_norm)
    self.action_gradient_norm = action_gradient_norm
    self.normalizer, self.replay, self.actor = agents.experience(environments)
    self.policy = policy(shape, action_size)
    self.critic = critic(shape, action_size, self.returns.outputs)
    self.optimizers = target_networks.wrap_optimizers(
        "D4PG", optimizer, ["critic", "policy"], tau, target_update_period, critic=self.critic,
        policy=self.policy)

  def __call__(self) -> dict[str, tf.Tensor]:
    """Takes one step, on this replica's part of the batch; returns scalars, float [].

    The scalars are the critic's loss; `value`, its mean value of the policy's actions; and those of
    the critic's head, of the actor and of the replay.
    """
    batch = self.replay.sample(replicator.batch_size())
    observations = self.normalizer(batch.observation)
    # The policy is updated first, so both updates use the networks from before this step.
    returns = batch.reward, batch.discount, self._following(batch)
    target = self.returns.target(*returns)
    value = self._update_policy(observations)
    losses = self._update_critic(batch, observations, target)
    self.replay.update_priorities(batch, losses)
    return {"loss/critic": tf.reduce_mean(batch.weight * losses), "value": value,
            **self.returns.scalars(*returns), **self.actor.scalars(), **self.replay.scalars()}

  def doubts(self, scalars: Mapping[str, float]) -> dict[str, str]:
    """Returns warnings about logged scalars, keyed by topic; see `replicator.train`."""
    return self.returns.doubts(scalars, self.replay)

  @replicator.any_batch_size
  def act(self, observations: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Returns actions: `[n, *shape], [n, action_size] -> [n, action_size]`; noise ~ N(0, 1)."""
    actions = self._action(self.normalizer(observations))
    actions += agents.scaled(tf.cast(noise, actions.dtype), self.noise, self.actor)
    return tf.clip_by_value(actions, -1.0, 1.0) if self.clip_noise else actions

  def _action(self, observations: tf.Tensor) -> tf.Tensor:
    return tf.tanh(self.policy(observations))

  def _following(self, batch: Transitions) -> tf.Tensor:
    """Returns the target critic's outputs for the target policy after n steps `[n, outputs]`."""
    observations = self.normalizer(batch.next_observation)
    with self.optimizers["policy"].averaged_weights():
      actions = self._action(observations)
    with self.optimizers["critic"].averaged_weights():
      return self.critic(observations, actions)

  def _update_policy(self, observations: tf.Tensor) -> tf.Tensor:
    """Moves the policy up the critic's mean return; returns the mean of these returns []."""
    def loss():
      actions = self._action(observations)
      # An inner product with a constant, so no gradient reaches the critic's weights.
      ascent, values = self._ascent(observations, tf.stop_gradient(actions))
      return -tf.reduce_mean(tf.reduce_sum(ascent * actions, 1)), tf.reduce_mean(values)

    return self.optimizers["policy"].minimize(loss)[1]

  def _ascent(self, observations: tf.Tensor, actions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns clipped dq/da of each example: `[n, *shape], [n, a] -> [n, a]`; and its value [n]."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch(actions)
      values = self.returns.mean(self.critic(observations, actions))
    gradient = tape.gradient(values, actions)
    return tf.clip_by_norm(gradient, self.action_gradient_norm, axes=[1]), values

  def _update_critic(self, batch: Transitions, observations: tf.Tensor, target: tf.Tensor
                     ) -> tf.Tensor:
    """Moves the critic toward the target returns; returns the loss of each example [n]."""
    def loss():
      losses = self.returns.losses(target, self.critic(observations, batch.action))
      return tf.reduce_mean(batch.weight * losses), losses

    return self.optimizers["critic"].minimize(loss)[1]


@gin.configurable("train_d4pg")
def d4pg(workdir: str, environments: Callable[[], Environments] = Environments) -> None:
  """Trains D4PG in `environments`, or resumes the run in `workdir`."""
  agents.train(D4PG, environments, workdir)


if __name__ == "__main__":
  app.run(d4pg)
