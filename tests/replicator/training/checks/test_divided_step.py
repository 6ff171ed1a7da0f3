"""A run compares its first step on several replicas, or in micro-batches, with one device."""

import re

import replicator
from tests.programs.planted_bugs import Regression
from tests.programs.two_networks import Points
from tests.replicator.training.checkpoints.runs import assert_equal, values
from tests.replicator.training.runs import MIRRORED_2, train

import keras
import numpy as np
import pytest
import tensorflow as tf

AGREES = re.compile(r"first step: as on one device, (\S+)\n")
MICROBATCHES = ["microbatch.n = 2"]


def first_step(tmp_path, capsys, *settings, **arguments) -> str:
  """What a run of one step says of it."""
  train(tmp_path, "train.steps = 1", "train.check_first_step = True", *settings,
        **{"inputs": Points(), **arguments})
  return capsys.readouterr().out


@pytest.mark.parametrize(("division", "tolerance"), [
    (MIRRORED_2, 1e-5), (MICROBATCHES, 1e-5),
    ([*MIRRORED_2, *MICROBATCHES, "train.precision = 'float64'"], 1e-12),
    pytest.param(["Replicator.strategy = 'central_storage'", "Replicator.logical_cpus = 2"], 1e-5,
                 marks=pytest.mark.slow),
    pytest.param([*MIRRORED_2, "Replicator.jit_compile = True"], 1e-5, marks=pytest.mark.slow)])
def test_a_sound_step_agrees(division, tolerance, tmp_path, capsys):
  said = first_step(tmp_path, capsys, *division, step=Regression)
  assert float(AGREES.search(said)[1]) < tolerance
  assert "warning" not in said


def test_batch_norm_by_micro_batch_is_compared_over_replicas_alone(tmp_path, capsys):
  settings = ["Regression.norm = 'global'", *MICROBATCHES]
  assert "first step" not in first_step(tmp_path / "a", capsys, *settings, step=Regression)
  said = first_step(tmp_path / "b", capsys, *settings, *MIRRORED_2, step=Regression)
  assert float(AGREES.search(said)[1]) < 1e-5


def test_one_device_says_nothing_and_the_check_can_be_left_out(tmp_path, capsys):
  assert "first step" not in first_step(tmp_path / "a", capsys, step=Regression)
  assert "first step" not in first_step(
      tmp_path / "b", capsys, *MIRRORED_2, "train.check_first_step = False", step=Regression)


@pytest.mark.parametrize(("bug", "division", "cause"), [
    ("sum", MIRRORED_2, "summed instead of averaged"),
    ("sum", MICROBATCHES, "summed instead of averaged"),
    ("clipping", MIRRORED_2, "clipping before aggregation: tf.clip_by_global_norm"),
    ("unaveraged_variable", MIRRORED_2, "a variable is assigned what one replica computed")])
def test_a_planted_bug_is_named(bug, division, cause, tmp_path, capsys):
  said = first_step(tmp_path, capsys, *division, f"Regression.bug = '{bug}'", step=Regression)
  assert re.search(f"warning: the first step is not as on one device: .*{cause}", said)


class Everything(tf.Module):
  """Changes variables of every kind."""

  def __init__(self):
    super().__init__()
    self.net = keras.Sequential([
        keras.Input([3]), keras.layers.Dense(4), replicator.GlobalBatchNorm(),
        replicator.Dropout(0.5), keras.layers.Dense(1)])
    self.optimizer = replicator.wrap_optimizer(
        keras.optimizers.Adam(0.1), self.net.trainable_variables, ema_decay=0.9)
    self.generator = tf.random.Generator.from_seed(1, alg="philox")
    self.count = replicator.replicated.variable(0, tf.int64)
    self.total = tf.Variable(0, dtype=tf.int64, trainable=False,
                             synchronization=tf.VariableSynchronization.ON_READ,
                             aggregation=tf.VariableAggregation.SUM)
    self.large = replicator.replicated.variable(np.zeros([1000, 1000], np.float32))

  def __call__(self, batch):
    replicator.replicated.update([self.count], lambda copies: copies[0].assign_add(1))
    self.total.assign_add(tf.cast(batch["x"].shape[0], tf.int64))
    self.generator.skip(1)
    loss = self.optimizer.minimize(
        lambda x, y: tf.reduce_mean(tf.square(self.net(x, training=True) - y)),
        batch["x"], batch["y"])
    return {"loss": loss, "count": self.count}


def test_the_run_goes_on_as_if_nothing_had_been_computed(tmp_path, capsys):
  settings = ["train.steps = 3", *MIRRORED_2]
  unchecked = values(train(tmp_path / "a", *settings, "train.check_first_step = False",
                           step=Everything, inputs=Points()))
  checked = train(tmp_path / "b", *settings, "train.check_first_step = True", step=Everything,
                  inputs=Points())
  assert "first step: as on one device" in capsys.readouterr().out
  assert_equal(checked, unchecked)


def test_a_step_that_cannot_be_compared_says_why(tmp_path, capsys):
  class NeedsItsBatch(Regression):
    def __call__(self, batch):
      if batch["x"].shape[0] != 16:
        raise ValueError("this step is for 16 examples")
      return super().__call__(batch)

  said = first_step(tmp_path, capsys, *MIRRORED_2, "train.global_batch_size = 32",
                    step=NeedsItsBatch)
  assert re.search("first step: not compared with one device .*for 16 examples", said)
