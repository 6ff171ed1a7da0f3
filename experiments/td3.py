"""TD3: an actor-critic agent for continuous control with three cures for overestimated values.

    python -m experiments.td3 --gin_file=configs/td3_pendulum.gin

Fujimoto et al. 2018 (arXiv:1802.09477), algorithm 1: the minimum of two target critics, noise on
the target policy's actions, and a policy and target networks that move at every second step.
"""

from collections.abc import Callable
from typing import Any

import replicator
from models.rl import agents
from models.rl.environments.environments import Environments
from models.rl.networks import two_critics
from models.rl.networks.actor_critic import Critic, Policy
from models.rl.replay.replay import Transitions
from replicator import UsageError, app, random, schedules

import gin
import keras
import tensorflow as tf


@gin.configurable(denylist=["environments"])
class TD3(tf.Module):
  """One training step: an update of both critics and, at every second step, one of the policy.

  The optimizers are made in the gin scopes `critics` and `policy`. The averages that they keep
  (`wrap_optimizer.ema_decay`) are the target networks. The policy waits by `wrap_optimizer.every`,
  and the target critics by `wrap_optimizer.ema_every`.

  Args:
    environments: where the actor acts.
    optimizer: makes a Keras optimizer.
    noise: standard deviation of the exploration, for actions in [-1, 1]: a number, or a schedule
      that counts environment steps.
    target_noise: standard deviation of the noise on the target policy's actions.
    target_clip: the largest such noise.
    policy: makes the network of the policy; it is made and called as `Policy` is.
    critic: makes each of the two critics; it is made and called as `Critic` is.
  """

  def __init__(self, environments: Environments,
               optimizer: Callable[[], keras.optimizers.Optimizer] = gin.REQUIRED,
               noise: schedules.Number = 0.1, target_noise: float = 0.2, target_clip: float = 0.5,
               policy: Callable[..., Any] = Policy, critic: Callable[..., Any] = Critic):
    super().__init__()
    shape, self.action_size = environments.observation_shape, environments.action_size
    if target_clip < 0.0:
      raise UsageError(f"TD3.target_clip = {target_clip}: must be at least 0")
    self.noise, self.target_noise, self.target_clip = noise, target_noise, target_clip
    self.normalizer, self.replay, self.actor = agents.experience(environments)
    self.policy = policy(shape, self.action_size)
    self.critics = [critic(shape, self.action_size, 1) for _ in range(2)]
    self.optimizers = replicator.wrap_optimizers(
        optimizer, critics=self.critics, policy=self.policy)
    agents.check_target_networks(self.optimizers)

  def __call__(self) -> dict[str, tf.Tensor]:
    """Takes one step, on this replica's part of the batch; returns scalars, float [].

    These are the critics' mean absolute error, weighted; `value`, the first critic's mean value of
    the policy's actions; and the scalars of the actor and of the replay.
    """
    batch = self.replay.sample(replicator.batch_size())
    observations = self.normalizer(batch.observation)
    noise = random.normal("target", [replicator.batch_size(), self.action_size])
    errors = two_critics.update(self.optimizers["critics"], self.critics, observations,
                                batch.action, self._target(batch, noise), batch.weight)
    value = self._update_policy(observations)
    self.replay.update_priorities(batch, errors)
    return {"critics": tf.reduce_mean(batch.weight * errors), "value": value,
            **self.actor.scalars(), **self.replay.scalars()}

  @replicator.any_batch_size
  def act(self, observations: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Actions in [-1, 1]: `[n, *shape], [n, action_size] -> [n, action_size]`; noise ~ N(0, 1)."""
    return self._action(self.normalizer(observations),
                        agents.scaled(noise, self.noise, self.actor))

  def _action(self, observations: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    actions = tf.tanh(self.policy(observations))
    return tf.clip_by_value(actions + tf.cast(noise, actions.dtype), -1.0, 1.0)

  def _target(self, batch: Transitions, noise: tf.Tensor) -> tf.Tensor:
    """The return by the lower target critic of a noisy target action: [n]."""
    following = self.normalizer(batch.next_observation)
    noise = tf.clip_by_value(self.target_noise * noise, -self.target_clip, self.target_clip)
    with self.optimizers["policy"].averaged_weights():
      actions = self._action(following, noise)
    with self.optimizers["critics"].averaged_weights():
      value = tf.reduce_min(two_critics.values(self.critics, following, actions), 1)
    return batch.reward + batch.discount * value

  def _update_policy(self, observations: tf.Tensor) -> tf.Tensor:
    """Moves the policy up the first critic; returns the mean value of its actions []."""
    def loss():
      actions = tf.tanh(self.policy(observations))
      return -tf.reduce_mean(self.critics[0](observations, actions))

    return -self.optimizers["policy"].minimize(loss)


@gin.configurable
def td3(workdir: str, environments: Callable[[], Environments] = Environments) -> None:
  """Trains TD3 in `environments`, or resumes the run in `workdir`."""
  agents.train(TD3, environments, workdir)


if __name__ == "__main__":
  app.run(td3)
