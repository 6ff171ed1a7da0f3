"""A run that starts from one whose networks are others."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import UsageError
from replicator.checkpoints import matching
from replicator.checkpoints.checkpoint import Checkpoints
from replicator.checkpoints.snapshot import Snapshot
from tests.programs.refusals import refusal
from tests.programs.two_networks import TwoNetworks, network
from tests.replicator.checkpoints import runs
from tests.replicator.checkpoints.weights import begin, equal, held, save, saved

pytestmark = pytest.mark.usefixtures("restored", "without_curves")


class Longer(TwoNetworks):
  """Its generator has attributes, in another order than it had before, and one more network."""

  class Net(keras.Model):
    def __init__(self, late: bool):
      super().__init__()
      if late:
        self.extra = keras.layers.Dense(2)
        self.extra.build((None, 3))
      self.blocks = [keras.layers.Dense(3) for _ in range(2 + late)]
      for block in self.blocks:
        block.build((None, 3))
      self.built = True

    def call(self, x, training=False):
      for block in self.blocks:
        x = block(x)
      return x

  def __init__(self, late: bool = True):
    tf.Module.__init__(self)
    self.generator = self.Net(late)
    setattr(self, "encoder" if late else "critic", network(1))
    ema = {} if not late else {"ema_decay": 0.5}
    self.optimizers = {"generator": replicator.wrap_optimizer(
        keras.optimizers.SGD(), self.generator.trainable_variables, **ema)}


def test_the_attributes_count_and_not_the_order_and_averages_begin_at_the_weights(tmp_path):
  source = save(Longer(late=False), tmp_path / "source")
  facts, _ = begin(source, step := Longer())
  blocks = {f"generator/blocks/{i}/{name}" for i in (0, 1) for name in ("kernel", "bias")}
  after = held(step)
  assert equal(after, saved(source)) == blocks
  for name in blocks:
    np.testing.assert_array_equal(after[f"average of {name}"], after[name])
  assert facts["not_taken"] == {
      **{f"generator/{path}": "is not in the other run" for path in (
          "blocks/2/kernel", "blocks/2/bias", "extra/kernel", "extra/bias")},
      "encoder": "is not in the other run", "critic": "is only in the other run"}


class Small(tf.Module):
  """A network of one layer."""

  def __init__(self):
    super().__init__()
    self.net = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])


def test_a_variable_with_a_value_for_each_replica_is_matched_by_one_value():
  values = {"net/000": np.zeros([2, 3], np.float32), "net/001": np.zeros([2, 3], np.float32)}
  names = {"net/000": "net/scale", "net/001": "net/bias"}
  found = matching.match(["net"], {path: tf.Variable(tf.zeros([3])) for path in names}, names,
                         Snapshot(values, ["net/000"]), names)
  assert found.taken == {"net/000": "net/000"}
  assert found.left == {"net/bias": "was float32 [2, 3] and is float32 [3]"}


def test_a_checkpoint_without_names_is_refused_by_name(tmp_path, monkeypatch):
  more = Small()
  more.extra = tf.Variable(1.0)
  monkeypatch.setattr("replicator.checkpoints.checkpoint.names_of", lambda step: {})
  runs.save(tmp_path / "checkpoints", more, 1)
  with pytest.raises(UsageError, match="1 variables do not fit this step: 'extra' is only in the"):
    Checkpoints(tmp_path / "checkpoints", Small()).restore()
  with pytest.raises(UsageError, match=r"nothing of it fits .*: net is not in the other run"):
    begin(tmp_path, Small())


def test_many_lines_are_shortened_in_the_console_alone(tmp_path):
  class Wide(tf.Module):
    def __init__(self, width):
      super().__init__()
      self.net = keras.Sequential([keras.Input([1]), keras.layers.Dense(1), *(
          keras.layers.Dense(width) for _ in range(6))])

  source = save(Wide(2), tmp_path / "source")
  facts, lines = begin(source, Wide(3))
  assert len(facts["not_taken"]) == 12
  assert [line.startswith("not taken") for line in lines] == [False] + [True] * 9
  assert lines[-1] == "not taken   and 4 more, which run.json names"


def test_a_run_of_another_kind_of_step_is_one_line(tmp_path):
  class Other(tf.Module):
    def __init__(self):
      super().__init__()
      self.policy = network(1)

  source = save(Other(), tmp_path / "source")
  for settings, line in [
      ({}, f"train.start_from = '{source}': nothing of it fits the networks of this run: generator "
           "is not in the other run; critic is not in the other run; policy is only in the other "
           "run"),
      ({"networks": ["critic"]},
       "StartFrom.networks: 'critic' is no network of both runs. Both have none"),
      ({"step": "best"}, f"StartFrom.step = 'best': {source}/config.gin, which names the scalar, "
                         "cannot be read ")]:
    assert refusal(begin, source, TwoNetworks(), **settings).startswith(line)
