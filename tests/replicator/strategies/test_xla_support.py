"""XLA is the default on GPUs, and a step that it cannot compile runs without."""

import pathlib

from replicator import Replicator, train
from replicator.strategies import xla_support
from tests.programs.logs import rows

import numpy as np
import pytest
import tensorflow as tf


@pytest.fixture
def gpu(monkeypatch):
  """What is computed on a CPU passes for computed on a GPU."""
  monkeypatch.setattr(xla_support, "uses_gpus", lambda strategy: True)


class Digits(tf.Module):
  """Counts the digits of what it has summed, with strings, which XLA does not know."""

  def __init__(self):
    super().__init__()
    self.total = tf.Variable(1.0)

  def __call__(self, batch):
    self.total.assign_add(tf.reduce_sum(batch))
    text = tf.strings.as_string(tf.cast(self.total, tf.int32))
    return {"digits": tf.cast(tf.strings.length(text), tf.float32)}


def test_there_is_no_xla_on_cpus_unless_it_is_asked_for():
  for strategy in ("default", "one_device"):
    assert not Replicator(strategy).jit_compile
    assert Replicator(strategy, jit_compile=True).jit_compile


def test_xla_is_the_default_on_gpus(gpu):
  for strategy in ("default", "one_device", "mirrored"):
    found = Replicator(strategy, logical_cpus=2 if strategy == "mirrored" else None)
    assert found.jit_compile
    assert (found.compiles_whole, found.compiles_parts) == (
        strategy != "mirrored", strategy == "mirrored")
    assert not Replicator(strategy, jit_compile=False).jit_compile
  assert not Replicator("mirrored", logical_cpus=2, devices_per_replica=2).jit_compile


def test_a_step_that_xla_compiles_says_nothing(gpu):
  outputs = Replicator("one_device").run(lambda x: tf.reduce_sum(x), np.arange(5))
  assert int(outputs[0]) == 10


def test_a_step_that_xla_cannot_compile_runs_without_and_says_why(gpu):
  step, runner = Digits(), Replicator("one_device")
  with pytest.warns(UserWarning, match=(
      r"runs without XLA, which cannot compile it: AsString at .*test_xla_support.py:\d+")):
    lengths = [float(runner.run(step, tf.fill([4], 5.0))[0]["digits"]) for _ in range(2)]
  assert lengths == [2.0, 2.0] and float(step.total) == 41.0
  assert not runner.jit_compile


def test_a_run_says_once_that_its_step_runs_without_xla(gpu, tmp_path, capfd):
  def batches():
    return tf.data.Dataset.from_tensors(tf.fill([4], 5.0)).repeat()
  train(Digits, batches(), workdir=str(tmp_path), steps=3, replicator=Replicator("one_device"),
        log_every=1, eval_every=0, checkpoint_every=0, global_batch_size=4)
  out = capfd.readouterr().out
  assert out.count("warning: the step runs without XLA") == 1
  assert [row["digits"] for row in rows(tmp_path)] == [2.0, 2.0, 2.0]


def test_what_a_step_may_not_do_under_xla_is_done_without_it(gpu, tmp_path):
  events = tf.summary.create_file_writer(str(tmp_path))

  def step(x):
    with events.as_default(step=0):
      tf.summary.scalar("sum", tf.reduce_sum(x))
    return tf.reduce_sum(x)
  with pytest.warns(UserWarning, match="runs without XLA, .*tf.summary"):
    Replicator("one_device").run(step, np.arange(5))
  events.flush()
  assert sum(path.stat().st_size for path in pathlib.Path(tmp_path).iterdir()) > 100


def test_an_error_of_the_step_stays_one(gpu):
  runner = Replicator("one_device")
  with pytest.raises(ValueError, match="Dimensions must be equal"):
    runner.run(lambda x: tf.ones([1, 1]) @ tf.ones([2, 2]), np.arange(5))
  assert runner.jit_compile
