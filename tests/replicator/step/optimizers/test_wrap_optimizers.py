"""One optimizer for each network, in the gin scope of its name."""

from replicator import wrap_optimizers
from replicator.step.variables import variables_of
from tests.programs.refusals import refusal

import gin
import keras
import tensorflow as tf


class Step(tf.Module):
  """Two networks and a variable."""

  def __init__(self, make, encoder=None):
    super().__init__()
    self.critics = [keras.Sequential([keras.Input([2]), keras.layers.Dense(1)]) for _ in range(2)]
    self.policy = keras.Sequential([keras.Input([2]), keras.layers.Dense(3)])
    self.temperature = keras.Variable(1.0)
    self.optimizers = wrap_optimizers(make, policy=self.policy, critics=self.critics,
                                      temperature=self.temperature, encoder=encoder)


def test_each_network_has_its_optimizer_and_none_has_none():
  step = Step(keras.optimizers.Adam)
  optimizers = step.optimizers
  assert list(optimizers) == ["policy", "critics", "temperature"]
  assert len({id(each.keras_optimizer) for each in optimizers.values()}) == 3
  owned = {name: [id(v) for v in each.variables_updated] for name, each in optimizers.items()}
  assert owned == {"policy": [id(v) for v in step.policy.trainable_variables],
                   "critics": [id(v) for each in step.critics for v in each.trainable_variables],
                   "temperature": [id(step.temperature)]}
  paths = {path for path in variables_of(step) if path.startswith("optimizers/")}
  assert {path.split("/")[1] for path in paths} == set(optimizers)  # Old checkpoints say so.


def test_each_is_made_in_the_scope_of_its_name():
  @gin.configurable(module="tests")
  def make_sgd(rate=0.5):
    return keras.optimizers.SGD(rate)

  gin.parse_config("""
      critics/make_sgd.rate = 0.25
      policy/wrap_optimizer.ema_decay = 0.9
  """)
  optimizers = Step(make_sgd).optimizers
  rates = {name: float(each.keras_optimizer.learning_rate) for name, each in optimizers.items()}
  assert rates == {"policy": 0.5, "critics": 0.25, "temperature": 0.5}
  assert [name for name, each in optimizers.items() if each.averages] == ["policy"]


def test_options_of_a_network_are_its_own():
  step = Step(keras.optimizers.SGD)
  optimizers = wrap_optimizers(
      keras.optimizers.SGD, {"policy": {"ema_decay": 0.5, "every": 2}},
      policy=step.policy, temperature=step.temperature)
  assert [bool(each.averages) for each in optimizers.values()] == [True, False]
  assert [each.calls is None for each in optimizers.values()] == [False, True]


def test_a_network_that_is_not_built_is_refused_also_in_a_list():
  built = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
  late = keras.Sequential([keras.layers.Dense(1)], name="late")
  assert refusal(wrap_optimizers, keras.optimizers.Adam, both=[built, late]).startswith(
      "wrap_optimizers: both[1], the network 'late', has no variables yet")
