"""SAC: soft actor-critic, an agent that tunes its own exploration.

    python -m experiments.sac --gin_file=configs/sac_pendulum.gin

Haarnoja et al. 2018 (arXiv:1812.05905): a Gaussian policy squashed to the range of actions, the
minimum of two critics, and a temperature that keeps the policy's entropy at a target.
"""

import math
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
class SAC(tf.Module):
  """One training step: an update of both critics, of the policy and of the temperature.

  The optimizers are made in the gin scopes `critics`, `policy` and `temperature`.

  Args:
    environments: where the actor acts.
    optimizer: makes a Keras optimizer.
    target_entropy: target entropy of the policy in nats; None for minus the number of dimensions.
      It must be below the entropy of uniform actions, log 2 per dimension.
    initial_temperature: the temperature (weight of the entropy) before the first step.
    tau: soft-update coefficient of the target critics.
    target_update_period: steps between updates of the target critics.
    noise: factor on the policy's standard deviation when it acts; a number or a schedule.
    policy: makes the policy network; constructed and called like `Policy`.
    critic: makes each of the two critics; constructed and called like `Critic`.
  """

  def __init__(self, environments: Environments,
               optimizer: Callable[[], keras.optimizers.Optimizer] = gin.REQUIRED,
               target_entropy: float | None = None, initial_temperature: float = 1.0,
               tau: float = 0.005, target_update_period: int = 1,
               noise: schedules.Number = 1.0, policy: Callable[..., Any] = Policy,
               critic: Callable[..., Any] = Critic):
    super().__init__()
    above_zero("SAC", initial_temperature=initial_temperature)
    shape, action_size = environments.observation_shape, environments.action_size
    if target_entropy is not None and target_entropy >= action_size * math.log(2.0):
      raise UsageError(f"SAC.target_entropy = {target_entropy}: no policy has that much, so the "
                       f"temperature would grow forever; uniform actions of length {action_size} "
                       f"have {action_size * math.log(2.0):.4g} nats; use less, such as "
                       f"{-float(action_size)}")
    self.action_size, self.noise = action_size, noise
    self.target_entropy = -float(action_size) if target_entropy is None else target_entropy
    self.normalizer, self.replay, self.actor = agents.experience(environments)
    self.policy = policy(shape, 2 * action_size)
    self.critics = [critic(shape, action_size, 1) for _ in range(2)]
    self.log_temperature = keras.Variable(math.log(initial_temperature), name="log_temperature",
                                          dtype=keras.config.floatx())
    self.optimizers = target_networks.wrap_optimizers(
        "SAC", optimizer, ["critics"], tau, target_update_period, critics=self.critics,
        policy=self.policy, temperature=self.log_temperature)

  def __call__(self) -> dict[str, tf.Tensor]:
    """Takes one step, on this replica's part of the batch; returns scalars, float [].

    The scalars are the critics' loss; `td_error`, their mean absolute error, weighted; the policy's
    `entropy`; the `temperature`; `value`, the mean of the lower critic's value of the policy's
    actions; and those of the actor and of the replay.
    """
    batch = self.replay.sample(replicator.batch_size())
    observations = self.normalizer(batch.observation)
    noise = [random.normal("policy", [replicator.batch_size(), self.action_size])
             for _ in range(2)]
    loss, errors = self._update_critics(batch, observations, noise[0])
    value, entropy = self._update_policy(observations, noise[1])
    self._update_temperature(entropy)
    self.replay.update_priorities(batch, errors)
    return {"loss/critics": loss, "td_error": tf.reduce_mean(batch.weight * errors),
            "value": value, "entropy": entropy,
            "temperature": tf.exp(tf.identity(self.log_temperature.value)), **self.actor.scalars(),
            **self.replay.scalars()}

  @replicator.any_batch_size
  def act(self, observations: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Returns actions in [-1, 1]: `[n, *shape], [n, a] -> [n, a]`; noise ~ N(0, 1)."""
    return self._sample(self.normalizer(observations),
                        agents.scaled(noise, self.noise, self.actor))[0]

  def _sample(self, observations: tf.Tensor, noise: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns actions tanh(mean + deviation * noise) `[n, a]`, and their log densities [n]."""
    mean, log_deviation = tf.split(self.policy(observations), 2, 1)
    log_deviation = -5.0 + 3.5 * (tf.tanh(log_deviation) + 1.0)  # in [-5, 2]
    noise = tf.cast(noise, mean.dtype)
    raw = mean + tf.exp(log_deviation) * noise
    # log(1 - tanh(x)^2) without cancellation.
    squashed = 2.0 * (math.log(2.0) - raw - tf.nn.softplus(-2.0 * raw))
    density = -0.5 * tf.square(noise) - log_deviation - 0.5 * math.log(2.0 * math.pi) - squashed
    return tf.tanh(raw), tf.reduce_sum(density, 1)

  def _update_critics(self, batch: Transitions, observations: tf.Tensor, noise: tf.Tensor
                      ) -> tuple[tf.Tensor, tf.Tensor]:
    """Moves the critics toward the soft n-step return; returns the loss [] and mean errors [n]."""
    following = self.normalizer(batch.next_observation)
    actions, density = self._sample(following, noise)
    with self.optimizers["critics"].averaged_weights():
      value = tf.reduce_min(two_critics.values(self.critics, following, actions), 1)
    soft_value = value - tf.exp(self.log_temperature.value) * density
    return two_critics.update(
        self.optimizers["critics"], self.critics, observations, batch.action,
        batch.reward + batch.discount * soft_value, 0.5 * batch.weight)

  def _update_policy(self, observations: tf.Tensor, noise: tf.Tensor
                     ) -> tuple[tf.Tensor, tf.Tensor]:
    """Updates the policy to raise the soft value; returns the mean value [] and the entropy []."""
    def loss():
      actions, density = self._sample(observations, noise)
      values = two_critics.values(self.critics, observations, actions)
      value = tf.reduce_mean(tf.reduce_min(values, 1))
      entropy = -tf.reduce_mean(density)
      return -value - tf.exp(self.log_temperature.value) * entropy, (value, entropy)

    return self.optimizers["policy"].minimize(loss)[1]

  def _update_temperature(self, entropy: tf.Tensor) -> None:
    """Raises the temperature if the entropy is below its target, else lowers it."""
    self.optimizers["temperature"].minimize(
        lambda: self.log_temperature.value * (entropy - self.target_entropy))


@gin.configurable("train_sac")
def sac(workdir: str, environments: Callable[[], Environments] = Environments) -> None:
  """Trains SAC in `environments`, or resumes the run in `workdir`."""
  agents.train(SAC, environments, workdir)


if __name__ == "__main__":
  app.run(sac)
