"""MPO: an agent that fits its policy to the best actions that it samples.

    python -m experiments.mpo --gin_file=configs/mpo_pendulum.gin

Abdolmaleki et al. 2018 (arXiv:1812.02256), with the settings of Acme's agent: the target critic
weights actions sampled from the target policy, and the policy moves toward the weighted actions
within bounds on its divergence. With a distributional critic it is DMPO.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import replicator
from models.rl import agents
from models.rl.environments.environments import Environments
from models.rl.networks import target_networks
from models.rl.networks.actor_critic import Critic, Policy
from models.rl.networks.critic_heads import CategoricalReturns, ExpectedReturns
from models.rl.networks.distributions import log_density
from replicator import app, random
from replicator.errors import above_zero, at_least_one

import gin
import keras
import tensorflow as tf


class Normal(NamedTuple):
  """Normal distributions of actions: means and standard deviations, `[n, a]` each."""

  mean: tf.Tensor
  deviation: tf.Tensor

  def log_density(self, actions: tf.Tensor) -> tf.Tensor:
    """Returns the log density at k actions of each: `[n, k, a] -> [n, k]`."""
    mean, deviation = self.mean[:, tf.newaxis], self.deviation[:, tf.newaxis]
    return log_density((actions - mean) / deviation, tf.math.log(deviation))

  def divergence(self, other: "Normal") -> tf.Tensor:
    """Returns KL(self, other) of each action dimension, averaged over examples: [a]."""
    squares = tf.square(self.deviation) + tf.square(self.mean - other.mean)
    return tf.reduce_mean(tf.math.log(other.deviation / self.deviation)
                          + 0.5 * squares / tf.square(other.deviation) - 0.5, 0)


@gin.configurable(denylist=["environments"])
class MPO(tf.Module):
  """One training step: an update of the policy, one of its multipliers, and one of the critic.

  The optimizers are made in the gin scopes `critic`, `policy` and `duals`.

  Args:
    environments: where the actor acts.
    optimizer: makes a Keras optimizer.
    returns: makes the head of the critic: `CategoricalReturns` or `ExpectedReturns`.
    num_action_samples: actions sampled per observation.
    epsilon: bound on the divergence of the weights from uniform, in nats.
    epsilon_mean: bound on the divergence per action dimension due to the means, in nats.
    epsilon_deviation: the same, due to the standard deviations.
    epsilon_penalty: like `epsilon`, for the weights that penalize actions outside [-1, 1].
    tau: soft-update coefficient of the target networks; 1 copies the networks.
    target_update_period: steps between updates of the target networks.
    deviation: the policy's initial standard deviation.
    policy: makes the policy network; constructed and called like `Policy`.
    critic: makes the critic; constructed and called like `Critic`.

  Raises:
    UsageError: a bound or the deviation is not positive, or no action is sampled.
  """

  def __init__(self, environments: Environments,
               optimizer: Callable[[], keras.optimizers.Optimizer] = gin.REQUIRED,
               returns: Callable[[], CategoricalReturns | ExpectedReturns] = CategoricalReturns,
               num_action_samples: int = 20, epsilon: float = 0.1, epsilon_mean: float = 0.0025,
               epsilon_deviation: float = 1e-6, epsilon_penalty: float = 0.001,
               tau: float = 1.0, target_update_period: int = 100, deviation: float = 0.5,
               policy: Callable[..., Any] = Policy, critic: Callable[..., Any] = Critic):
    super().__init__()
    at_least_one("MPO", num_action_samples=num_action_samples)
    above_zero("MPO", epsilon=epsilon, epsilon_mean=epsilon_mean, deviation=deviation,
               epsilon_deviation=epsilon_deviation, epsilon_penalty=epsilon_penalty)
    shape, size = environments.observation_shape, environments.action_size
    self.returns, self.deviation = returns(), deviation
    self.sampled = [num_action_samples, size]
    self.bounds_of_weights = [epsilon, epsilon_penalty]
    self.bounds_of_moves = [epsilon_mean, epsilon_deviation]
    self.normalizer, self.replay, self.actor = agents.experience(environments)
    self.policy = policy(shape, 2 * size)
    self.critic = critic(shape, size, self.returns.outputs)
    # The multipliers of the four bounds: softplus of these variables.
    self.duals = [
        keras.Variable(tf.fill(at, value), name=name, dtype=keras.config.floatx())
        for name, at, value in (("temperature", [], 10.0), ("penalty_temperature", [], 10.0),
                                ("mean_weight", [size], 10.0), ("deviation_weight", [size], 1e3))]
    self.optimizers = target_networks.wrap_optimizers(
        "MPO", optimizer, ["critic", "policy"], tau, target_update_period, critic=self.critic,
        policy=self.policy, duals=self.duals)

  def __call__(self) -> dict[str, tf.Tensor]:
    """Takes one step, on this replica's part of the batch; returns scalars, float [].

    The scalars are the critic's loss; `value`, the target critic's mean value of sampled actions;
    `deviation`, the target policy's mean deviation; the `temperature`; the divergences `kl_mean`
    and `kl_deviation`; and those of the critic's head, of the actor and of the replay.
    """
    batch = self.replay.sample(replicator.batch_size())
    # The policy is improved at the states after n steps, so that the critic can use its samples.
    states = self.normalizer(batch.next_observation)
    with self.optimizers["policy"].averaged_weights():
      old = self._distribution(states)
    noise = random.normal("policy", [replicator.batch_size(), *self.sampled])
    actions = old.mean[:, tf.newaxis] + old.deviation[:, tf.newaxis] * noise
    with self.optimizers["critic"].averaged_weights():
      outputs = self._sampled_outputs(states, actions)
    values = self.returns.mean(outputs)
    scalars = self._update_policy(states, old, actions, values)
    returns = batch.reward, batch.discount, self.returns.mixture(outputs)
    target = self.returns.target(*returns)
    seen = self.normalizer(batch.observation)

    def loss():
      losses = self.returns.losses(target, self.critic(seen, batch.action))
      return tf.reduce_mean(batch.weight * losses), losses

    critic, losses = self.optimizers["critic"].minimize(loss)
    self.replay.update_priorities(batch, losses)
    return {"loss/critic": critic, "value": tf.reduce_mean(values),
            "deviation": tf.reduce_mean(old.deviation), **scalars,
            **self.returns.scalars(*returns), **self.actor.scalars(), **self.replay.scalars()}

  def doubts(self, scalars: Mapping[str, float]) -> dict[str, str]:
    """Returns warnings about logged scalars, keyed by topic; see `replicator.train`."""
    return self.returns.doubts(scalars, self.replay)

  @replicator.any_batch_size
  def act(self, observations: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Returns actions in [-1, 1]: `[n, *shape], [n, a] -> [n, a]`; noise ~ N(0, 1)."""
    mean, deviation = self._distribution(self.normalizer(observations))
    return tf.clip_by_value(mean + deviation * tf.cast(noise, mean.dtype), -1.0, 1.0)

  def _distribution(self, observations: tf.Tensor) -> Normal:
    mean, raw = tf.split(self.policy(observations), 2, 1)
    return Normal(mean, self.deviation / math.log(2.0) * tf.nn.softplus(raw) + 1e-6)

  def _sampled_outputs(self, observations: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """Returns the critic's outputs for k actions: `[n, *shape], [n, k, a] -> [n, k, outputs]`."""
    k, size = self.sampled
    outputs = self.critic(tf.repeat(observations, k, 0),
                          tf.reshape(tf.clip_by_value(actions, -1.0, 1.0), [-1, size]))
    return tf.reshape(outputs, [-1, k, self.returns.outputs])

  def _update_policy(self, states: tf.Tensor, old: Normal, actions: tf.Tensor, values: tf.Tensor
                     ) -> dict[str, tf.Tensor]:
    """Moves the policy toward better actions, and updates the multipliers of the bounds."""
    outside = -tf.norm(actions - tf.clip_by_value(actions, -1.0, 1.0), axis=2)
    scores = [values, outside]
    temperature, penalty, *multipliers = map(_positive, self.duals)
    weights = tf.nn.softmax(values / temperature) + tf.nn.softmax(outside / penalty)

    def loss():
      new = self._distribution(states)
      # The means move under the old deviations, and the deviations around the old means.
      parts = [Normal(new.mean, old.deviation), Normal(old.mean, new.deviation)]
      gain = sum(tf.reduce_mean(tf.reduce_sum(weights * part.log_density(actions), 1))
                 for part in parts)
      moved = [old.divergence(part) for part in parts]
      held = sum(tf.reduce_sum(multiplier * kl)
                 for multiplier, kl in zip(multipliers, moved, strict=True))
      return held - gain, moved

    moved = self.optimizers["policy"].minimize(loss)[1]
    self.optimizers["duals"].minimize(lambda: self._dual_loss(scores, moved))
    return {"temperature": temperature, "kl_mean": tf.reduce_mean(moved[0]),
            "kl_deviation": tf.reduce_mean(moved[1])}

  def _dual_loss(self, scores: list[tf.Tensor], moved: list[tf.Tensor]) -> tf.Tensor:
    """Returns the multipliers' loss, given scores of sampled actions [n, k] and divergences [a]."""
    multipliers = [_positive(dual) for dual in self.duals]
    losses = [t * (bound + tf.reduce_mean(tf.reduce_logsumexp(score / t, 1)
                                          - math.log(self.sampled[0])))
              for t, bound, score in zip(multipliers[:2], self.bounds_of_weights, scores,
                                         strict=True)]
    losses += [tf.reduce_sum(multiplier * (bound - kl)) for multiplier, bound, kl in zip(
        multipliers[2:], self.bounds_of_moves, moved, strict=True)]
    return sum(losses)


def _positive(dual: keras.Variable) -> tf.Tensor:
  """Returns a multiplier; the limit keeps its gradient above 0."""
  return tf.nn.softplus(tf.maximum(tf.identity(dual.value), -18.0))


@gin.configurable("train_mpo")
def mpo(workdir: str, environments: Callable[[], Environments] = Environments) -> None:
  """Trains MPO in `environments`, or resumes the run in `workdir`."""
  agents.train(MPO, environments, workdir)


if __name__ == "__main__":
  app.run(mpo)
