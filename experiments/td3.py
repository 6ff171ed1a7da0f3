"""TD3: an actor-critic agent for continuous control with three fixes for overestimated values.

    python -m experiments.td3 --gin_file=configs/td3_pendulum.gin

Fujimoto et al. 2018 (arXiv:1802.09477), algorithm 1: the minimum of two target critics, noise on
the target policy's actions, and updates of the policy and target networks at every second step.
With `TD3.cloning` it is TD3+BC (Fujimoto & Gu 2021, arXiv:2106.06860), which learns from recorded
episodes.
"""

from collections.abc import Callable
from typing import Any

import replicator
from models.rl import agents
from models.rl.environments.environments import Environments
from models.rl.networks import target_networks, two_critics
from models.rl.networks.actor_critic import Critic, Policy
from models.rl.replay.replay import Transitions
from replicator import UsageError, app, random, schedules
from replicator.errors import above_zero

import gin
import keras
import tensorflow as tf


@gin.configurable(denylist=["environments"])
class TD3(tf.Module):
  """One training step: an update of both critics and, at every second step, one of the policy.

  The optimizers are made in the gin scopes `critics` and `policy`.

  Args:
    environments: where the actor acts.
    optimizer: makes a Keras optimizer.
    noise: standard deviation of the exploration noise, for actions in [-1, 1]; a number or a
      schedule.
    target_policy_noise: standard deviation of the noise on the target policy's actions.
    target_noise_clip: limit on the size of that noise.
    tau: soft-update coefficient of the target networks.
    policy_delay: steps between updates of the policy and of all target networks.
    cloning: None, or the `alpha` of TD3+BC for offline agents, 2.5 in the paper. The policy's loss
      is then its mean squared distance from the sampled actions, minus `alpha` times the value
      divided by the mean absolute value.
    policy: makes the policy network; constructed and called like `Policy`.
    critic: makes each of the two critics; constructed and called like `Critic`.
  """

  def __init__(self, environments: Environments,
               optimizer: Callable[[], keras.optimizers.Optimizer] = gin.REQUIRED,
               noise: schedules.Number = 0.1, target_policy_noise: float = 0.2,
               target_noise_clip: float = 0.5, tau: float = 0.005, policy_delay: int = 2,
               cloning: float | None = None, policy: Callable[..., Any] = Policy,
               critic: Callable[..., Any] = Critic):
    super().__init__()
    shape, self.action_size = environments.observation_shape, environments.action_size
    if target_noise_clip < 0.0:
      raise UsageError(f"TD3.target_noise_clip = {target_noise_clip}: must be at least 0")
    if cloning is not None:
      above_zero("TD3", cloning=cloning)
    self.noise, self.cloning = noise, cloning
    self.target_policy_noise, self.target_noise_clip = target_policy_noise, target_noise_clip
    self.normalizer, self.replay, self.actor = agents.experience(environments)
    self.policy = policy(shape, self.action_size)
    self.critics = [critic(shape, self.action_size, 1) for _ in range(2)]
    self.optimizers = target_networks.wrap_optimizers(
        "TD3", optimizer, ["critics", "policy"], tau, policy_delay=policy_delay,
        critics=self.critics, policy=self.policy)

  def __call__(self) -> dict[str, tf.Tensor]:
    """Takes one step, on this replica's part of the batch; returns scalars, float [].

    The scalars are the critics' loss; `td_error`, their mean absolute error, weighted; `value`, the
    first critic's mean value of the policy's actions; and those of the actor and of the replay.
    """
    batch = self.replay.sample(replicator.batch_size())
    observations = self.normalizer(batch.observation)
    noise = random.normal("target", [replicator.batch_size(), self.action_size])
    loss, errors = two_critics.update(self.optimizers["critics"], self.critics, observations,
                                      batch.action, self._target(batch, noise), batch.weight)
    value = self._update_policy(observations, batch.action)
    self.replay.update_priorities(batch, errors)
    return {"loss/critics": loss, "td_error": tf.reduce_mean(batch.weight * errors),
            "value": value, **self.actor.scalars(), **self.replay.scalars()}

  @replicator.any_batch_size
  def act(self, observations: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Returns actions in [-1, 1]: `[n, *shape], [n, a] -> [n, a]`; noise ~ N(0, 1)."""
    return self._action(self.normalizer(observations),
                        agents.scaled(noise, self.noise, self.actor))

  def _action(self, observations: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    actions = tf.tanh(self.policy(observations))
    return tf.clip_by_value(actions + tf.cast(noise, actions.dtype), -1.0, 1.0)

  def _target(self, batch: Transitions, noise: tf.Tensor) -> tf.Tensor:
    """Returns the target return [n]: the lower target critic's value of a noisy action."""
    following = self.normalizer(batch.next_observation)
    noise = tf.clip_by_value(self.target_policy_noise * noise, -self.target_noise_clip,
                             self.target_noise_clip)
    with self.optimizers["policy"].averaged_weights():
      actions = self._action(following, noise)
    with self.optimizers["critics"].averaged_weights():
      value = tf.reduce_min(two_critics.values(self.critics, following, actions), 1)
    return batch.reward + batch.discount * value

  def _update_policy(self, observations: tf.Tensor, sampled: tf.Tensor) -> tf.Tensor:
    """Updates the policy to raise the first critic's value; returns its mean value []."""
    def loss():
      actions = tf.tanh(self.policy(observations))
      values = self.critics[0](observations, actions)
      value = tf.reduce_mean(values)
      if self.cloning is None:
        return -value, value
      # The mean is over the global batch.
      size = replicator.all_mean(tf.stop_gradient(tf.reduce_mean(tf.abs(values))))
      distance = tf.reduce_mean(tf.square(actions - sampled))
      return distance - self.cloning * value / size, value

    return self.optimizers["policy"].minimize(loss)[1]


@gin.configurable("train_td3")
def td3(workdir: str, environments: Callable[[], Environments] = Environments) -> None:
  """Trains TD3 in `environments`, or resumes the run in `workdir`."""
  agents.train(TD3, environments, workdir)


if __name__ == "__main__":
  app.run(td3)
