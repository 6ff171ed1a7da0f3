"""DQN: an agent that chooses among actions by their values, with parts of Rainbow.

    python -m experiments.dqn --gin_file=configs/dqn_cartpole.gin

Mnih et al. 2015, and the parts that Hessel et al. 2018 (arXiv:1710.02298) join: double Q-learning
(`DQN.double`), a dueling network (`ActionValues.dueling`), n-step returns (`Replay.n_step`),
prioritized replay (`Replay.priority_exponent`), the distribution of returns
(`DQN.returns = @CategoricalReturns`), which is C51, and noisy layers (`ActionValues.noise = 0.5`
with `DQN.epsilon = 0.0`).
"""

from collections.abc import Callable
from typing import Any

import replicator
from models.rl import agents
from models.rl.environments.environments import Environments
from models.rl.networks import distributions
from models.rl.networks.actor_critic import ActionValues
from models.rl.networks.critic_heads import CategoricalReturns, ExpectedReturns
from models.rl.replay.replay import Transitions
from replicator import app, random, schedules
from replicator.errors import from_0_to_1

import gin
import keras
import tensorflow as tf


@gin.configurable(denylist=["environments"])
class DQN(tf.Module):
  """One training step: an update of the network of values, from replayed experience.

  The optimizer is made in the gin scope `network`. The averages that it keeps are the target
  network: `wrap_optimizer.ema_decay = 0.0` with `ema_every = 100` copies it every 100 updates.

  Args:
    environments: where the actor acts; their actions are discrete.
    optimizer: makes a Keras optimizer.
    returns: makes the head of the network: `ExpectedReturns` or `CategoricalReturns`.
    double: chooses the following action by the network itself, and values it by the target network
      (van Hasselt et al. 2016, arXiv:1509.06461); if False, the target network does both.
    epsilon: the share of random actions: a number, or a schedule that counts environment steps.
    network: makes the network; it is made and called as `ActionValues` is.
  """

  def __init__(self, environments: Environments,
               optimizer: Callable[[], keras.optimizers.Optimizer] = gin.REQUIRED,
               returns: Callable[[], CategoricalReturns | ExpectedReturns] = ExpectedReturns,
               double: bool = True, epsilon: schedules.Number = 0.05,
               network: Callable[..., Any] = ActionValues):
    super().__init__()
    if not schedules.is_schedule(epsilon):
      from_0_to_1("DQN", epsilon=epsilon)
    self.returns, self.double, self.epsilon = returns(), double, epsilon
    self.action_size = environments.action_size
    self.network = network(environments.observation_shape, self.action_size, self.returns.outputs)
    self.noise_size = self.action_size + getattr(self.network, "noise_size", 0)
    self.normalizer, self.replay, self.actor = agents.experience(
        environments, discrete=True, noise_size=self.noise_size)
    self.optimizers = replicator.wrap_optimizers(optimizer, network=self.network)
    agents.check_target_networks(self.optimizers)

  def __call__(self) -> dict[str, tf.Tensor]:
    """Takes one step, on this replica's part of the batch; returns scalars, float [].

    These are the `loss`; `value`, the mean value of the best actions; `epsilon`; and the scalars of
    the actor and of the replay.
    """
    batch = self.replay.sample(replicator.batch_size())
    losses, value = self._update(batch, self._target(batch))
    self.replay.update_priorities(batch, losses)
    return {"loss": tf.reduce_mean(batch.weight * losses), "value": value,
            "epsilon": tf.cast(self._epsilon(), value.dtype),
            **self.actor.scalars(), **self.replay.scalars()}

  @replicator.any_batch_size
  def act(self, observations: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Actions, 1 at the place of the chosen one: `[n, *shape], [n, k] -> [n, k]`; noise ~ N(0, 1).

    Without noise they are the best ones. k is `noise_size`.
    """
    noise, of_network = noise[:, :self.action_size], noise[:, self.action_size:]
    values = self.returns.mean(self._outputs(self.normalizer(observations), of_network))
    return distributions.draw(distributions.epsilon_greedy(values, self._epsilon()), noise)

  def _outputs(self, observations: tf.Tensor, noise: tf.Tensor | None = None) -> tf.Tensor:
    """The network's outputs `[n, actions, outputs]`, by default with new noise."""
    size = self.noise_size - self.action_size
    if not size:
      return self.network(observations)
    if noise is None:
      noise = random.normal("noise", [observations.shape[0], size])
    return self.network(observations, noise)

  def _epsilon(self) -> tf.Tensor:
    return schedules.value_at(self.epsilon, tf.identity(self.actor.environment_steps))

  def _target(self, batch: Transitions) -> tf.Tensor:
    """The head's target for the return after the best following actions."""
    following = self.normalizer(batch.next_observation)
    with self.optimizers["network"].averaged_weights():
      outputs = self._outputs(following)
    judge = self._outputs(following) if self.double else outputs
    best = tf.argmax(self.returns.mean(judge), 1)
    return self.returns.target(batch.reward, batch.discount,
                               tf.gather(outputs, best, batch_dims=1))

  def _update(self, batch: Transitions, target: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Moves the taken actions' values to the target; the losses [n], and the mean best value []."""
    observations = self.normalizer(batch.observation)

    def loss():
      outputs = self._outputs(observations)
      losses = self.returns.losses(target, distributions.chosen(outputs, batch.action))
      value = tf.reduce_mean(tf.reduce_max(self.returns.mean(outputs), 1))
      return tf.reduce_mean(batch.weight * losses), losses, value

    return self.optimizers["network"].minimize(loss)[1:]


@gin.configurable
def dqn(workdir: str, environments: Callable[[], Environments] = Environments) -> None:
  """Trains DQN in `environments`, or resumes the run in `workdir`."""
  agents.train(DQN, environments, workdir)


if __name__ == "__main__":
  app.run(dqn)
