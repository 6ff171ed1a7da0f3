"""MPO: an agent that fits its policy to the better ones of the actions that it samples.

    python -m experiments.mpo --gin_file=configs/mpo_pendulum.gin

Abdolmaleki et al. 2018 (arXiv:1812.02256), with the settings of Acme's agent: actions of the target
policy are weighted by the target critic, and the policy moves towards the weighted ones as far as
bounds on its divergence allow. With the critic of a distribution of returns it is DMPO.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import replicator
from models.rl import agents
from models.rl.environments.environments import Environments
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
    """The logarithm of the density at k actions of each: `[n, k, a] -> [n, k]`."""
    mean, deviation = self.mean[:, tf.newaxis], self.deviation[:, tf.newaxis]
    return log_density((actions - mean) / deviation, tf.math.log(deviation))

  def divergence(self, other: "Normal") -> tf.Tensor:
    """KL(self, other) of each number, averaged over the examples: [a]."""
    squares = tf.square(self.deviation) + tf.square(self.mean - other.mean)
    return tf.reduce_mean(tf.math.log(other.deviation / self.deviation)
                          + 0.5 * squares / tf.square(other.deviation) - 0.5, 0)


@gin.configurable(denylist=["environments"])
class MPO(tf.Module):
  """One training step: an update of the policy, one of its multipliers, and one of the critic.

  The optimizers are made in the gin scopes `critic`, `policy` and `duals`. The averages that the
  first two keep (`wrap_optimizer.ema_decay`) are the target networks.

  Raises a UsageError if a bound or the deviation is not above 0, or no action is sampled.

  Args:
    environments: where the actor acts.
    optimizer: makes a Keras optimizer.
    returns: makes the head of the critic: `CategoricalReturns` or `ExpectedReturns`.
    actions: how many actions are sampled for each observation.
    epsilon: bound on the divergence of the weights from equal ones, in nats.
    epsilon_mean: bound on the divergence of each number of an action when the means move, in nats.
    epsilon_deviation: the same when the deviations move.
    epsilon_penalty: as `epsilon`, of the weights that draw actions into [-1, 1].
    deviation: the policy's standard deviation at the start.
    policy: makes the network of the policy; it is made and called as `Policy` is.
    critic: makes that of the critic; it is made and called as `Critic` is.
  """

  def __init__(self, environments: Environments,
               optimizer: Callable[[], keras.optimizers.Optimizer] = gin.REQUIRED,
               returns: Callable[[], CategoricalReturns | ExpectedReturns] = CategoricalReturns,
               actions: int = 20, epsilon: float = 0.1, epsilon_mean: float = 0.0025,
               epsilon_deviation: float = 1e-6, epsilon_penalty: float = 0.001,
               deviation: float = 0.5, policy: Callable[..., Any] = Policy,
               critic: Callable[..., Any] = Critic):
    super().__init__()
    at_least_one("MPO", actions=actions)
    above_zero("MPO", epsilon=epsilon, epsilon_mean=epsilon_mean, deviation=deviation,
               epsilon_deviation=epsilon_deviation, epsilon_penalty=epsilon_penalty)
    shape, size = environments.observation_shape, environments.action_size
    self.returns, self.deviation = returns(), deviation
    self.sampled = [actions, size]
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
    self.optimizers = replicator.wrap_optimizers(
        optimizer, critic=self.critic, policy=self.policy, duals=self.duals)
    agents.check_target_networks({name: self.optimizers[name] for name in ("critic", "policy")})

  def __call__(self) -> dict[str, tf.Tensor]:
    """Takes one step, on this replica's part of the batch; returns scalars, float [].

    These are the critic's loss; `value`, the target critic's mean of the sampled actions;
    `deviation`, the mean one of the target policy; the `temperature`; the divergences `kl_mean` and
    `kl_deviation`; and the scalars of the actor and of the replay.
    """
    batch = self.replay.sample(replicator.batch_size())
    # The policy is improved where the n steps end, so that its samples serve the critic, too.
    states = self.normalizer(batch.next_observation)
    with self.optimizers["policy"].averaged_weights():
      old = self._distribution(states)
    noise = random.normal("policy", [replicator.batch_size(), *self.sampled])
    actions = old.mean[:, tf.newaxis] + old.deviation[:, tf.newaxis] * noise
    with self.optimizers["critic"].averaged_weights():
      outputs = self._sampled_outputs(states, actions)
    values = self.returns.mean(outputs)
    scalars = self._update_policy(states, old, actions, values)
    target = self.returns.target(batch.reward, batch.discount, self.returns.mixture(outputs))
    seen = self.normalizer(batch.observation)

    def loss():
      losses = self.returns.losses(target, self.critic(seen, batch.action))
      return tf.reduce_mean(batch.weight * losses), losses

    critic, losses = self.optimizers["critic"].minimize(loss)
    self.replay.update_priorities(batch, losses)
    return {"critic": critic, "value": tf.reduce_mean(values),
            "deviation": tf.reduce_mean(old.deviation), **scalars,
            **self.actor.scalars(), **self.replay.scalars()}

  @replicator.any_batch_size
  def act(self, observations: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Actions in [-1, 1]: `[n, *shape], [n, action_size] -> [n, action_size]`; noise ~ N(0, 1)."""
    mean, deviation = self._distribution(self.normalizer(observations))
    return tf.clip_by_value(mean + deviation * tf.cast(noise, mean.dtype), -1.0, 1.0)

  def _distribution(self, observations: tf.Tensor) -> Normal:
    mean, raw = tf.split(self.policy(observations), 2, 1)
    return Normal(mean, self.deviation / math.log(2.0) * tf.nn.softplus(raw) + 1e-6)

  def _sampled_outputs(self, observations: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """The critic's outputs for k actions: `[n, *shape], [n, k, a] -> [n, k, outputs]`."""
    k, size = self.sampled
    outputs = self.critic(tf.repeat(observations, k, 0),
                          tf.reshape(tf.clip_by_value(actions, -1.0, 1.0), [-1, size]))
    return tf.reshape(outputs, [-1, k, self.returns.outputs])

  def _update_policy(self, states: tf.Tensor, old: Normal, actions: tf.Tensor, values: tf.Tensor
                     ) -> dict[str, tf.Tensor]:
    """Moves the policy to the better actions, and the multipliers towards their bounds."""
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
    """The loss of the multipliers, given scores of sampled actions [n, k] and divergences [a]."""
    multipliers = [_positive(dual) for dual in self.duals]
    losses = [t * (bound + tf.reduce_mean(tf.reduce_logsumexp(score / t, 1)
                                          - math.log(self.sampled[0])))
              for t, bound, score in zip(multipliers[:2], self.bounds_of_weights, scores,
                                         strict=True)]
    losses += [tf.reduce_sum(multiplier * (bound - kl)) for multiplier, bound, kl in zip(
        multipliers[2:], self.bounds_of_moves, moved, strict=True)]
    return sum(losses)


def _positive(dual: keras.Variable) -> tf.Tensor:
  """A multiplier; the limit keeps a gradient above 0."""
  return tf.nn.softplus(tf.maximum(tf.identity(dual.value), -18.0))


@gin.configurable
def mpo(workdir: str, environments: Callable[[], Environments] = Environments) -> None:
  """Trains MPO in `environments`, or resumes the run in `workdir`."""
  agents.train(MPO, environments, workdir)


if __name__ == "__main__":
  app.run(mpo)
