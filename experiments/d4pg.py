"""D4PG: an actor-critic agent for continuous control, trained in one replica step.

    python -m experiments.d4pg --gin_file=configs/d4pg_pendulum.gin

Barth-Maron et al. 2018 (arXiv:1804.08617), with the settings of Acme's agent: a critic of the
distribution of n-step returns, a deterministic policy that climbs its mean, target networks
for both, Gaussian exploration.
"""

from collections.abc import Callable

import gin
import keras
import tensorflow as tf

import replicator
from models.rl import agents, categorical
from models.rl.environments import Environments
from models.rl.networks import Critic, Policy
from models.rl.normalization import Normalizer
from models.rl.replay import Replay, Transitions
from replicator import app


@gin.configurable(denylist=["environments"])
class D4PG(tf.Module):
  """One training step: an update of the critic and one of the policy, from replayed experience.

  The two optimizers are made in the gin scopes `critic` and `policy`. Target networks are the
  averages that they keep: `wrap_optimizer.ema_decay = 0.0` with `ema_every = 100` copies a
  network once in 100 updates, `ema_decay = 0.995` follows it slowly.

  Args:
    environments: where the actor acts.
    optimizer: makes a Keras optimizer.
    lowest_return: the first atom of the distribution of returns.
    highest_return: the last one; rule: the discounted sum of the largest rewards.
    atoms: how many, evenly spaced.
    noise: standard deviation of the exploration, where the range of actions is [-1, 1].
    action_gradient_norm: the gradient of the value by an action is clipped to this norm.
  """

  def __init__(self, environments: Environments,
               optimizer: Callable[[], keras.optimizers.Optimizer] = gin.REQUIRED,
               lowest_return: float = -150.0, highest_return: float = 150.0, atoms: int = 51,
               noise: float = 0.3, action_gradient_norm: float = 1.0):
    super().__init__()
    shape, action_size = environments.observation_shape, environments.action_size
    self.lowest_return, self.highest_return = lowest_return, highest_return
    self.atoms = atoms
    self.noise = noise
    self.action_gradient_norm = action_gradient_norm
    self.normalizer = Normalizer(shape)
    self.policy = Policy(shape, action_size)
    self.critic = Critic(shape, action_size, atoms)
    self.replay = Replay(shape, action_size, environments.number,
                         observation_dtype=environments.observation_dtype)
    self.actor = agents.make_actor(environments, self.replay, self.normalizer)
    self.optimizers = {}
    for name in ("critic", "policy"):
      with gin.config_scope(name):
        self.optimizers[name] = replicator.wrap_optimizer(
            optimizer(), getattr(self, name).trainable_variables)

  def __call__(self) -> dict[str, tf.Tensor]:
    """One step, of this replica's share of the batch -> scalars, float [].

    Besides the two losses: `value`, the mean of what the critic expects of the policy's actions.
    """
    batch = self.replay.sample(replicator.batch_size())
    observations = self.normalizer(batch.observation)
    critic_gradients, errors = self._critic_gradients(batch, observations)
    policy_gradients, value = self._policy_gradients(observations)
    self.optimizers["critic"].apply(critic_gradients, self.critic.trainable_variables)
    self.optimizers["policy"].apply(policy_gradients, self.policy.trainable_variables)
    self.replay.update_priorities(batch, errors)
    return {"critic": tf.reduce_mean(batch.weight * errors), "value": value,
            **self.actor.scalars()}

  @tf.function(autograph=False, reduce_retracing=True)
  def act(self, observations: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Actions in [-1, 1]: `[n, *shape], [n, action_size] -> [n, action_size]`; noise ~ N(0, 1)."""
    actions = self._action(self.normalizer(observations))
    return tf.clip_by_value(actions + self.noise * tf.cast(noise, actions.dtype), -1.0, 1.0)

  def _action(self, observations: tf.Tensor) -> tf.Tensor:
    return tf.tanh(self.policy(observations))

  def _returns(self) -> tf.Tensor:
    return categorical.atoms(self.lowest_return, self.highest_return, self.atoms,
                             keras.config.floatx())

  def _critic_gradients(self, batch: Transitions, observations: tf.Tensor
                        ) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Towards the distribution of n-step returns: gradients, and the cross-entropies [n]."""
    z = self._returns()
    target = self._target_distribution(batch, z)
    variables = self.critic.trainable_variables
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch([v.value for v in variables])
      errors = categorical.cross_entropy(target, self.critic(observations, batch.action))
      loss = tf.reduce_mean(batch.weight * errors)
      scaled = self.optimizers["critic"].scale_loss(loss)
    return tape.gradient(scaled, variables), errors

  def _target_distribution(self, batch: Transitions, z: tf.Tensor) -> tf.Tensor:
    """Of the n-step return and what the target networks expect after it: `[n, atoms]`."""
    observations = self.normalizer(batch.next_observation)
    with self.optimizers["policy"].averaged_weights():
      actions = self._action(observations)
    with self.optimizers["critic"].averaged_weights():
      logits = self.critic(observations, actions)
    returns = batch.reward[:, tf.newaxis] + batch.discount[:, tf.newaxis] * z
    return categorical.project(returns, tf.nn.softmax(logits), z)

  def _policy_gradients(self, observations: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Up the critic's mean return; gradients, and that mean []."""
    variables = self.policy.trainable_variables
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch([v.value for v in variables])
      actions = self._action(observations)
      # As if the loss were the inner product with a constant: the critic's own weights stay.
      ascent, values = self._ascent(observations, tf.stop_gradient(actions))
      loss = -tf.reduce_mean(tf.reduce_sum(ascent * actions, 1))
      scaled = self.optimizers["policy"].scale_loss(loss)
    return tape.gradient(scaled, variables), tf.reduce_mean(values)

  def _ascent(self, observations: tf.Tensor, actions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """dq/da of each example, clipped: `[n, *shape], [n, a] -> [n, a]`; and its value q [n]."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch(actions)
      values = categorical.mean(self.critic(observations, actions), self._returns())
    gradient = tape.gradient(values, actions)
    return tf.clip_by_norm(gradient, self.action_gradient_norm, axes=[1]), values


@gin.configurable
def d4pg(workdir: str, environments: Callable[[], Environments] = Environments) -> None:
  """Trains D4PG in `environments`, or resumes the run in `workdir`."""
  agents.train(D4PG, environments, workdir)


if __name__ == "__main__":
  app.run(d4pg)
