from models.rl.actor_pool.policy_graph import ExportedPolicy, imported
from models.rl.networks.actor_critic import Policy
from models.rl.networks.observation_normalizer import Normalizer
from replicator.errors import UsageError
from replicator.strategies import strategy

import numpy as np
import pytest
import tensorflow as tf


class Agent(tf.Module):

  def __init__(self):
    super().__init__()
    self.normalizer = Normalizer((3,))
    self.policy = Policy((3,), 2, sizes=(4,))
    self.scale = tf.constant([2.0])

  @tf.function(autograph=False, reduce_retracing=True)
  def act(self, observations, noise):
    return tf.tanh(self.policy(self.normalizer(observations)) * self.scale) + noise


@pytest.mark.parametrize("name", ["one_device", "mirrored"])
def test_an_imported_policy_acts_like_the_one_that_was_exported(name):
  with strategy.make(name, 2).scope():
    agent = Agent()
  observations = np.random.default_rng(0).normal(size=[5, 3]).astype(np.float32)
  noise = np.ones([5, 2], np.float32)
  exported = ExportedPolicy(agent.act, (3,), "float32", 2)
  act, load = imported(exported.graph, exported.weights())
  np.testing.assert_array_equal(act(observations, noise), agent.act(observations, noise))
  agent.policy.network.weights[-1].assign([1.0, -1.0])
  agent.normalizer.update(observations)
  assert np.abs(act(observations, noise) - agent.act(observations, noise)).max() > 0.1
  load(exported.weights())
  np.testing.assert_array_equal(act(observations, noise), agent.act(observations, noise))


def test_a_policy_that_reads_a_table_is_refused():
  table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0], [1.0]), 0.0)
  with pytest.raises(UsageError, match="reads a table"):
    ExportedPolicy(lambda observations, noise: table[tf.zeros_like(noise, tf.int32)] + noise,
                   (3,), "float32", 2)


def test_a_policy_that_calls_python_code_is_refused():
  double = lambda observations, noise: tf.numpy_function(lambda x: 2 * x, [noise], tf.float32)
  with pytest.raises(UsageError, match=r"the policy calls tf.numpy_function at .*policy_graph.py:"
                                       r".*make_actor.processes = 0"):
    ExportedPolicy(double, (3,), "float32", 2)
