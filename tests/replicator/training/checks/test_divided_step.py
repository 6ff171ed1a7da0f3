"""A run compares its first step on several replicas, or in micro-batches, with one device."""

import re

import replicator
from replicator.step.replicated import copies_of
from tests.programs.planted_bugs import Regression
from tests.programs.two_networks import Points
from tests.replicator.training.checkpoints.runs import assert_equal, values
from tests.replicator.training.runs import MIRRORED_2, train

import keras
import numpy as np
import pytest
import tensorflow as tf

AGREES = re.compile(r"first step: same as on one device, (\S+)\n")
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
    ("unaveraged_variable", MIRRORED_2, "a variable is assigned a value that one replica")])
def test_a_planted_bug_is_named(bug, division, cause, tmp_path, capsys):
  said = first_step(tmp_path, capsys, *division, f"Regression.bug = '{bug}'", step=Regression)
  assert re.search(f"warning: the first step is not the same as on one device: .*{cause}", said)


class Signals:
  """Examples with a word and complex numbers."""

  size = 50

  def load(self, index):
    phase = tf.cast(index, tf.float32) / 10
    return {"name": tf.strings.as_string(index), "wave": tf.complex(tf.cos(phase), [tf.sin(phase)])}


class Waves(tf.Module):
  """Learns from words and complex numbers, and keeps a mean of some: of the replica for `own`."""

  def __init__(self, own: str = ""):
    super().__init__()
    self.weight = keras.Variable([1.0], name="weight")
    self.optimizer = replicator.wrap_optimizer(keras.optimizers.SGD(0.1), [self.weight])
    self.own = own
    self.wave, self.words = (tf.Variable(
        start, trainable=False, synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA) for start in (1 + 2j, "none"))

  def __call__(self, batch):
    numbers = tf.strings.to_number(batch["name"])[:, tf.newaxis]
    mean, imag = (tf.reduce_mean(x) if self.own == name else replicator.all_mean(tf.reduce_mean(x))
                  for name, x in (("words", numbers), ("wave", tf.math.imag(batch["wave"]))))
    self.words.assign(tf.strings.as_string(mean))
    self.wave.assign(tf.complex(tf.ones([], tf.float64), tf.cast(imag, tf.float64)))
    return {"loss": self.optimizer.minimize(lambda wave, x: tf.reduce_mean(tf.square(
        tf.abs(wave) * x - self.weight.value * tf.math.imag(wave))), batch["wave"], numbers)}


@pytest.mark.parametrize("own", ["", "wave", "words"])
def test_words_and_complex_numbers_are_compared(own, tmp_path, capsys):
  said = first_step(tmp_path, capsys, *MIRRORED_2, step=lambda: Waves(own), inputs=Signals())
  if not own:
    assert float(AGREES.search(said)[1]) < 1e-5
  else:
    assert re.search(f"warning: the first step is not the same as on one device: variable '{own}' "
                     ".*likely cause: a variable is assigned a value that one replica", said)


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
  assert "first step: same as on one device" in capsys.readouterr().out
  assert_equal(checked, unchecked)


class Meeting(Regression):
  """Keeps means over replicas, for which they meet where a variable is assigned."""

  def __init__(self):
    super().__init__()
    self.mean = tf.Variable(0.0, trainable=False, aggregation=tf.VariableAggregation.MEAN)
    self.own = tf.Variable(0.0, trainable=False, aggregation=tf.VariableAggregation.MEAN,
                           synchronization=tf.VariableSynchronization.ON_READ)

  def __call__(self, batch):
    self.mean.assign(0.5 * tf.reduce_mean(batch["x"]))
    scalars = super().__call__(batch)
    self.own.assign(tf.reduce_mean(batch["y"]) + self.mean.read_value())
    return scalars


def test_replicas_that_meet_where_variables_are_assigned_are_compared(tmp_path, capsys):
  said = first_step(tmp_path, capsys, *MIRRORED_2, step=Meeting)
  assert float(AGREES.search(said)[1]) < 1e-5 and "warning" not in said


class Half(tf.Module):
  """A float16 layer whose gradients have this size; one optimizer of two makes no update."""

  def __init__(self, slope: float, bug: str = ""):
    super().__init__()
    self.slope, self.bug = slope, bug
    self.net, self.idle = (keras.Sequential([
        keras.Input([3]), keras.layers.Dense(2), keras.layers.Dense(1)]) for _ in range(2))
    self.optimizers = replicator.wrap_optimizers(
        lambda: keras.optimizers.Adam(0.1), net=self.net, idle=self.idle)

  def __call__(self, batch):
    def losses(x):
      outputs = self.slope * tf.cast(self.net(x), tf.float32)
      mean = tf.reduce_mean(outputs)
      return tf.reduce_sum(outputs) if self.bug == "sum" else mean, mean
    return {"loss": self.optimizers["net"].minimize(losses, batch["x"])[1]}


HALF = ["train.precision = 'mixed_float16'"]


@pytest.mark.parametrize("division", [
    MIRRORED_2, pytest.param(MICROBATCHES, marks=pytest.mark.slow)],
    ids=["replicas", "micro-batches"])
@pytest.mark.parametrize("slope", [2.0 ** -18, 32.0], ids=["small", "large"])
def test_gradients_in_half_precision_neither_vanish_nor_overflow(
    slope, division, tmp_path, capsys):
  step = lambda bug="": lambda: Half(slope, bug)
  said = first_step(tmp_path / "a", capsys, *division, *HALF, step=step())
  assert float(AGREES.search(said)[1]) < 0.02
  said = first_step(tmp_path / "b", capsys, *division, *HALF, step=step("sum"))
  assert "warning: the first step is not the same as on one device: gradient 'opti" in said
  assert "summed instead of averaged" in said


class Canceling(tf.Module):
  """The gradient of the first bias is only rounding, which Adam makes steps of full size of."""

  def __init__(self):
    super().__init__()
    self.net = keras.Sequential([
        keras.Input([3]), keras.layers.Dense(64), replicator.GlobalBatchNorm(),
        keras.layers.ReLU(), keras.layers.Dense(1)])
    self.optimizer = replicator.wrap_optimizer(
        keras.optimizers.Adam(0.1), self.net.trainable_variables, ema_decay=0.9)

  def __call__(self, batch):
    def loss(x, y):
      return tf.reduce_mean(tf.square(tf.cast(self.net(x, training=True), tf.float32) - y))
    return {"loss": self.optimizer.minimize(loss, batch["x"], batch["y"])}


@pytest.mark.parametrize("setting", ["train.precision = 'mixed_bfloat16'",
                                     "wrap_optimizer.communication_dtype = 'bfloat16'"])
def test_rounding_that_adam_amplifies_in_half_precision_is_no_difference(
    setting, tmp_path, capsys):
  said = first_step(tmp_path, capsys, *MIRRORED_2, setting, step=Canceling)
  assert AGREES.search(said) and "warning" not in said


def test_float64_is_compared_strictly_whatever_dtype_float32_is_sent_in(tmp_path, capsys):
  class SlightlyWrong(Regression):
    def __call__(self, batch):
      return {**super().__call__(batch), "beside": 1.0 + 0.1 * replicator.num_replicas()}

  said = first_step(tmp_path, capsys, *MIRRORED_2, "train.precision = 'float64'",
                    "wrap_optimizer.communication_dtype = 'bfloat16'", step=SlightlyWrong)
  assert re.search("warning: the first step is not the same as on one device: .*beside", said)


def test_the_loss_scale_of_a_run_is_what_it_would_be_without_the_check(tmp_path, capsys):
  unchecked, checked = (train(
      tmp_path / str(checks), "train.steps = 2", *MIRRORED_2, *HALF,
      f"train.check_first_step = {checks}", step=lambda: Half(64.0), inputs=Points())
                        for checks in (False, True))
  assert "first step: same as on one device" in capsys.readouterr().out
  for name, factor in (("net", 2.0 ** 13), ("idle", 2.0 ** 15)):  # It overflows twice.
    for step in (unchecked, checked):
      scale = step.optimizers[name].loss_scale
      assert [copy.numpy() for copy in copies_of(scale.factor)] == [factor] * 2
  assert_equal(checked, values(unchecked))


def test_a_step_that_cannot_be_compared_says_why(tmp_path, capsys):
  class NeedsItsBatch(Regression):
    def __call__(self, batch):
      if batch["x"].shape[0] != 16:
        raise ValueError("this step is for 16 examples")
      return super().__call__(batch)

  said = first_step(tmp_path, capsys, *MIRRORED_2, "train.global_batch_size = 32",
                    step=NeedsItsBatch)
  assert re.search("first step: not compared with one device .*for 16 examples", said)


class Sensitive(tf.Module):
  """A step with a number that amplifies rounding, and maybe one that is wrong on many replicas."""

  def __init__(self, is_wrong: bool):
    super().__init__()
    self.weight, self.is_wrong = keras.Variable(1.0), is_wrong
    self.optimizer = replicator.wrap_optimizer(keras.optimizers.SGD(0.1), [self.weight])

  def __call__(self, batch):
    large = self.optimizer.minimize(
        lambda x: 1e6 * self.weight * tf.reduce_mean(tf.square(x) + 1.0), batch["x"])
    beside = replicator.num_replicas() if self.is_wrong else 1
    return {"amplified": tf.sin(10.0 * large), "beside": float(beside)}


def test_rounding_that_a_step_amplifies_is_no_warning_but_a_bug_beside_it_is(tmp_path, capsys):
  said = first_step(tmp_path / "a", capsys, *MIRRORED_2, step=lambda: Sensitive(False))
  assert "first step: same as on one device up to rounding, which this step amplifies to" in said
  assert "warning" not in said
  said = first_step(tmp_path / "b", capsys, *MIRRORED_2, step=lambda: Sensitive(True))
  assert re.search("warning: the first step is not the same as on one device: .*beside", said)
