"""DQN: a value-based agent for discrete actions, with the extensions of Rainbow.

    python -m experiments.dqn --gin_file=configs/dqn_cartpole.gin

Mnih et al. 2015, and the extensions of Hessel et al. 2018 (arXiv:1710.02298): double Q-learning
(`DQN.double`), a dueling network (`ActionValues.dueling`), n-step returns (`Replay.n_step`),
prioritized replay (`Replay.priority_exponent`), the distribution of returns
(`DQN.returns = @CategoricalReturns`), which is C51, and noisy layers (`ActionValues.noise = 0.5`
with `DQN.epsilon = 0.0`).
"""

from collections.abc import Callable, Mapping
from typing import Any

import replicator
from models.rl import agents
from models.rl.environments.environments import Environments
from models.rl.networks import distributions, target_networks
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
  """One training step: an update of the value network, from replayed experience.

  The optimizer is made in the gin scope `network`.

  Args:
    environments: where the actor acts; their actions are discrete.
    optimizer: makes a Keras optimizer.
    returns: makes the head of the network: `ExpectedReturns` or `CategoricalReturns`.
    double: the online network chooses the next action, and the target network evaluates it (van
      Hasselt et al. 2016, arXiv:1509.06461); if False, the target network does both.
    epsilon: the fraction of random actions; a number or a schedule.
    tau: soft-update coefficient of the target network; 1 copies the network.
    target_update_period: steps between updates of the target network.
    network: makes the network; constructed and called like `ActionValues`.
  """

  def __init__(self, environments: Environments,
               optimizer: Callable[[], keras.optimizers.Optimizer] = gin.REQUIRED,
               returns: Callable[[], CategoricalReturns | ExpectedReturns] = ExpectedReturns,
               double: bool = True, epsilon: schedules.Number = 0.05, tau: float = 1.0,
               target_update_period: int = 250,
               network: Callable[..., Any] = ActionValues):
    super().__init__()
    if not schedules.is_schedule(epsilon):
      from_0_to_1("DQN", epsilon=epsilon)
    self.returns, self.double, self.epsilon = returns(), double, epsilon
    self.action_size, self.masked = environments.action_size, environments.masked
    self.network = network(environments.observation_shape, self.action_size, self.returns.outputs)
    self.noise_size = self.action_size + getattr(self.network, "noise_size", 0)
    self.normalizer, self.replay, self.actor = agents.experience(
        environments, discrete=True, noise_size=self.noise_size)
    self.optimizers = target_networks.wrap_optimizers(
        "DQN", optimizer, ["network"], tau, target_update_period, network=self.network)

  def __call__(self) -> dict[str, tf.Tensor]:
    """Takes one step, on this replica's part of the batch; returns scalars, float [].

    The scalars are the network's loss; `value`, the mean value of the best actions; `epsilon`; and
    those of the network's head, of the actor and of the replay.
    """
    batch = self.replay.sample(replicator.batch_size())
    returns = batch.reward, batch.discount, self._following(batch)
    losses, value = self._update(batch, self.returns.target(*returns))
    self.replay.update_priorities(batch, losses)
    return {"loss/network": tf.reduce_mean(batch.weight * losses), "value": value,
            "epsilon": tf.cast(self._epsilon(), value.dtype),
            **self.returns.scalars(*returns), **self.actor.scalars(), **self.replay.scalars()}

  def doubts(self, scalars: Mapping[str, float]) -> dict[str, str]:
    """Returns warnings about logged scalars, keyed by topic; see `replicator.train`."""
    return self.returns.doubts(scalars, self.replay)

  @replicator.any_batch_size
  def act(self, observations: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Returns one-hot actions: `[n, *shape], [n, noise_size] -> [n, k]`; noise ~ N(0, 1).

    With zero noise, actions are greedy. k is the number of actions.
    """
    noise, of_network = noise[:, :self.action_size], noise[:, self.action_size:]
    values = self.returns.mean(self._outputs(self.normalizer(observations), of_network))
    return distributions.draw(distributions.epsilon_greedy(
        values, self._epsilon(), self._possible(observations)), noise)

  def _outputs(self, observations: tf.Tensor, noise: tf.Tensor | None = None) -> tf.Tensor:
    """Returns the network's outputs `[n, actions, outputs]`, by default with new noise."""
    size = self.noise_size - self.action_size
    if not size:
      return self.network(observations)
    if noise is None:
      noise = random.normal("noise", [observations.shape[0], size])
    return self.network(observations, noise)

  def _possible(self, observations: tf.Tensor) -> tf.Tensor | None:
    """Returns the action mask in the observations, bool `[n, k]`; None if there is none."""
    return observations[:, -self.action_size:] > 0 if self.masked else None

  def _epsilon(self) -> tf.Tensor:
    return agents.exploration_at(self.epsilon, self.actor)

  def _following(self, batch: Transitions) -> tf.Tensor:
    """Returns the target network's outputs for the best next actions `[n, outputs]`."""
    following = self.normalizer(batch.next_observation)
    with self.optimizers["network"].averaged_weights():
      outputs = self._outputs(following)
    judge = self._outputs(following) if self.double else outputs
    possible = self._possible(batch.next_observation)
    best = tf.argmax(distributions.masked(self.returns.mean(judge), possible), 1)
    return tf.gather(outputs, best, batch_dims=1)

  def _update(self, batch: Transitions, target: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Moves the values of taken actions toward the target; returns losses [n], mean best value."""
    observations = self.normalizer(batch.observation)

    def loss():
      outputs = self._outputs(observations)
      losses = self.returns.losses(target, distributions.chosen(outputs, batch.action))
      values = distributions.masked(self.returns.mean(outputs), self._possible(batch.observation))
      return (tf.reduce_mean(batch.weight * losses), losses,
              tf.reduce_mean(tf.reduce_max(values, 1)))

    return self.optimizers["network"].minimize(loss)[1:]


@gin.configurable("train_dqn")
def dqn(workdir: str, environments: Callable[[], Environments] = Environments) -> None:
  """Trains DQN in `environments`, or resumes the run in `workdir`."""
  agents.train(DQN, environments, workdir)


if __name__ == "__main__":
  app.run(dqn)
