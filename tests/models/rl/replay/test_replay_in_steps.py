"""The replay in compiled steps: on several replicas, under XLA, and restored."""

import functools
import re

import replicator
from models.rl.replay import priorities
from models.rl.replay.replay import Replay
from models.rl.replay.timesteps import CONTINUES
from replicator import Replicator, UsageError
from replicator.step.replicated import copies_of
from replicator.training.checkpoints import saver
from tests.models.rl.replay.test_replay import random_timesteps, timesteps_of

import keras
import numpy as np
import pytest
import tensorflow as tf


class Learner(tf.Module):
  """A step that samples, and returns the whole global batch."""

  def __init__(self, replay: Replay, n: int):
    super().__init__()
    self.replay, self._n = replay, n

  def __call__(self):
    drawn = self.replay.sample(self._n // replicator.num_replicas())
    self.replay.update_priorities(drawn, drawn.reward)
    return replicator.all_concat(drawn)


def run(replica: Replicator, **settings) -> tuple[list, list]:
  """Samples of some steps with inserts in between, and all copies of the priorities at the end."""
  with replica.scope():
    step = Learner(Replay((2,), 1, 2, capacity=40, n_step=3, **settings), 16)
  draws = []
  for i in range(4):
    step.replay.insert(random_timesteps(15, 2, seed=i))
    draws += [[x.numpy() for x in replica.run(step)[0]] for _ in range(2)]
  return draws, [copy.numpy() for level in step.replay.priorities.levels
                 for copy in copies_of(level)]


one_device = functools.cache(lambda exponent: run(Replicator("one_device"),
                                                  priority_exponent=exponent))


@pytest.mark.parametrize("strategy, count, priority_exponent", [
    ("mirrored", 2, 0.0), ("mirrored", 4, 0.8), ("central_storage", 2, 0.8)])
def test_replicas_together_sample_what_one_does(strategy, count, priority_exponent):
  expected, levels = one_device(priority_exponent)
  assert any((draw[5] < 1).any() for draw in expected) == (priority_exponent > 0)
  found, copies = run(Replicator(strategy, logical_cpus=count),
                      priority_exponent=priority_exponent)
  for one, other in zip(expected, found, strict=True):
    for right, value in zip(one, other, strict=True):
      np.testing.assert_allclose(value, right, rtol=1e-6)
  per_level = len(copies) // len(levels)
  assert per_level == (count if strategy == "mirrored" else 1)
  for i, copy in enumerate(copies):
    np.testing.assert_allclose(copy, levels[i // per_level], rtol=1e-6)


@pytest.mark.parametrize("strategy, count", [
    ("one_device", 1), ("mirrored", 2), ("central_storage", 2)])
def test_every_draw_of_all_replicas_is_counted(strategy, count):
  replica = Replicator(strategy, logical_cpus=count)
  with replica.scope():
    step = Learner(Replay((2,), 1, 2, capacity=40, n_step=3), 16)

  def twice():
    return step(), step.replay.sample(4 // replicator.num_replicas()), step.replay.scalars()

  for i in range(3):
    step.replay.insert(random_timesteps(15, 2, seed=i))
    scalars = replica.run(twice)[0][2]
    assert float(scalars["samples_per_insert"]) == pytest.approx(20 * (i + 1) / (15 * (i + 1)))
  assert [copy.numpy() for copy in copies_of(step.replay.drawn)] == [60] * len(
      copies_of(step.replay.drawn))


def test_xla_samples_the_same_in_a_loop():
  keras.config.set_floatx("float64")
  replay = Replay((2,), 1, 2, capacity=2000, n_step=4, priority_exponent=0.8, stack=2)
  replay.insert(random_timesteps(3000, 2, seed=0))
  start = [variable.numpy() for variable in replay.variables]

  def steps():
    def body(i, _):
      with replicator.step.context.entered(tf.cast(i, tf.int64)):
        drawn = replay.sample(32)
        replay.update_priorities(drawn, drawn.reward)
        return i + 1, list(drawn)
    return tf.while_loop(lambda i, _: i < 10, body, [0, empty])[1]

  empty = [tf.zeros_like(x) for x in replay.sample(32)]

  found = []
  for jit in (None, True):
    for variable, value in zip(replay.variables, start, strict=True):
      variable.assign(value)
    found.append(tf.function(steps, autograph=False, jit_compile=jit)())
  for plain, compiled in zip(*found, strict=True):
    np.testing.assert_allclose(compiled, plain, rtol=1e-6)
  assert {x.dtype for x in found[1][:6]} == {tf.float64}


def test_xla_sets_the_same_priorities():
  errors, found = np.random.default_rng(0).lognormal(0, 3, 64), []
  for jit in (None, True):
    replay = Replay((2,), 1, 2, capacity=200, priority_exponent=0.3)
    replay.insert(random_timesteps(200, 2, seed=0))
    compiled = tf.function(lambda *of: priorities.change(*of, exponent=0.3), autograph=False,
                           jit_compile=jit)
    compiled([replay.largest_priority, *replay.priorities.levels], tf.range(64, dtype=tf.int64),
             tf.constant(errors, tf.float32))
    found.append(replay.priorities.levels[0].numpy())
  np.testing.assert_array_equal(*found)


@pytest.mark.slow
def test_xla_copies_none_of_the_variables():
  replay = Replay((3,), 1, 1, capacity=5000, n_step=2, priority_exponent=0.8)

  @tf.function(autograph=False, jit_compile=True)
  def step():
    with replicator.step.context.entered(tf.constant(1, tf.int64)):
      drawn = replay.sample(32)
      replay.update_priorities(drawn, drawn.reward)
      return list(drawn)
  compiled = step.experimental_get_compiler_ir()(stage="optimized_hlo")
  copied = set(re.findall(r"\[([\d,]*)\]\S* copy\(", compiled))
  big = {",".join(map(str, v.shape)) for v in replay.variables if v.shape.num_elements() > 100}
  assert "parameter(" in compiled and len(big) >= 5
  assert not copied & big


def test_a_restored_replay_continues_on_other_replicas_as_if_never_interrupted(tmp_path):
  def learner(replicas: int) -> tuple[Learner, Replicator]:
    replica = Replicator("mirrored" if replicas > 1 else "one_device", logical_cpus=replicas)
    with replica.scope():
      return Learner(Replay((2,), 1, 2, capacity=40, n_step=3, priority_exponent=0.8), 8), replica

  step, replica = learner(1)
  step.replay.insert(random_timesteps(60, 2, seed=0))
  replica.run(step)
  checkpoints = saver.Saver(tmp_path, step, replica)
  checkpoints.save(1, {})
  checkpoints.wait()
  other, others = learner(2)
  other.replay.insert(random_timesteps(7, 2, seed=9))
  saver.Saver(tmp_path, other, others).restore()
  for run_by in (others, replica):
    run_by._steps_run = 1
  for each in (step, other):
    each.replay.insert(random_timesteps(20, 2, seed=1))
  for one, two in zip(replica.run(step)[0], others.run(other)[0], strict=True):
    np.testing.assert_allclose(one, two, rtol=1e-6)


def test_sampling_an_empty_replay_is_an_error():
  replay = Replay((2,), 1, 1, capacity=9, n_step=3)
  replay.insert(timesteps_of(0, [CONTINUES] * 3))
  with pytest.raises(UsageError, match="insert more than n_step = 3 timesteps"):
    replay.sample(4)
  drawn = Replicator().run(Learner(replay, 4))[0]
  assert np.isnan(drawn.reward).all()
