"""State that no checkpoint keeps is refused, or noticed when the run resumes."""

import itertools
import re

import replicator
from replicator import UsageError
from tests.programs.two_networks import WIDTH
from tests.replicator.training.runs import train

import keras
import numpy as np
import pytest
import tensorflow as tf

KILLED_AT = 3
SETTINGS = ["train.steps = 6", "train.checkpoint_every = 2", "train.check_first_step = True"]
NOT_SAVED = r"warning: the first step differs from the one .* some state is not saved"
CHANGED = "warning: the step's 'state' is not the same as before"

starts = itertools.count()  # What a set, a hash and a generator without a seed depend on.


class Step(tf.Module):
  """Learns a line from points that something of its own scales."""

  def __init__(self):
    super().__init__()
    self.weight = keras.Variable([1.0] * WIDTH)
    self.optimizer = replicator.wrap_optimizer(keras.optimizers.SGD(0.01), [self.weight])
    self.scale = replicator.replicated.variable(1.0, "float32")
    self.state = self.made()

  def made(self):
    return None

  def before(self, number):
    """Called before each step."""

  def scaled(self, x):
    return x * self.scale

  def __call__(self, x):
    loss = lambda x: tf.reduce_mean(tf.square(tf.linalg.matvec(x, self.weight.value) - 1.0))
    return {"loss": self.optimizer.minimize(loss, self.scaled(x))}


class Counter(Step):
  made = int

  def before(self, number):
    self.state += 1
    self.scale.assign(self.state)


class Generator(Counter):
  made = staticmethod(lambda: np.random.default_rng(1))

  def before(self, number):
    self.scale.assign(self.state.normal())


class GlobalGenerator(Counter):
  def before(self, number):
    self.scale.assign(np.random.normal())


class Iterator(Counter):
  made = staticmethod(lambda: itertools.count())

  def before(self, number):
    self.scale.assign(next(self.state))


class Normal(Step):
  def scaled(self, x):
    return x + tf.random.normal(x.shape)


class Dropped(Step):
  def scaled(self, x):
    return tf.nn.dropout(x, 0.5)


class Flipped(Step):
  def scaled(self, x):
    return tf.image.random_brightness(x[:, tf.newaxis, :, tf.newaxis], 0.5)[:, 0, :, 0]


class KerasGlobal(Step):
  def scaled(self, x):
    return x + keras.random.normal(x.shape)


class Vocabulary(Step):
  def made(self):
    words = ["a", "b", "c", "d"]
    shift = next(starts) % 4
    return {word: number for number, word in enumerate(words[shift:] + words[:shift])}


class Hash(Step):
  def made(self):
    return hash(f"{next(starts)}") % 1000


class Unseeded(Step):
  def made(self):
    return np.random.default_rng().normal(size=3)


class Table(Step):
  def made(self):
    layer = keras.layers.Dense(1)
    layer.table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)
    return layer


class Queue(Step):
  def made(self):
    return tf.queue.FIFOQueue(9, [tf.float32], [[WIDTH]])


class Points:
  """As many points as a batch has; `start` is what differs from process to process."""

  size, batched = 16, True

  def __init__(self, start: int = 0):
    self.points = np.random.default_rng(start).normal(size=[self.size, WIDTH]).astype("float32")

  def load(self, index):
    return tf.gather(tf.constant(self.points), index)


def resumed(tmp_path, capsys, step, *now: str, inputs=Points) -> str:
  """What a run says that was killed after a checkpoint, and resumed with what is set `now`."""
  def before(step, number):
    step.before(number)

  def dies(step, number):
    before(step, number)
    if number == KILLED_AT:
      raise InterruptedError

  with pytest.raises(InterruptedError):
    train(tmp_path, *SETTINGS, step=step, inputs=inputs(), before_call=dies)
  capsys.readouterr()
  train(tmp_path, *SETTINGS, *now, step=step, inputs=inputs(), before_call=before)
  return capsys.readouterr().out


def slow(*arguments):
  return pytest.param(*arguments, marks=pytest.mark.slow)


@pytest.mark.parametrize(("step", "said"), [
    (Generator, NOT_SAVED), (Vocabulary, CHANGED),
    *(slow(each, NOT_SAVED) for each in (
        Counter, GlobalGenerator, Iterator, Normal, Dropped, Flipped, KerasGlobal)),
    slow(Hash, CHANGED), slow(Unseeded, CHANGED)])
def test_state_that_is_not_saved_is_noticed(step, said, tmp_path, capsys):
  assert re.search(said, resumed(tmp_path, capsys, step)), said


@pytest.mark.slow
def test_it_is_noticed_in_the_inputs(tmp_path, capsys):
  said = resumed(tmp_path, capsys, Step, inputs=lambda: Points(next(starts)))
  assert re.search(NOT_SAVED, said)


@pytest.mark.slow
@pytest.mark.parametrize(("step", "said"), [(Generator, NOT_SAVED), (Vocabulary, CHANGED)])
def test_it_is_noticed_where_settings_without_effect_have_changed(step, said, tmp_path, capsys):
  assert re.search(said, resumed(tmp_path, capsys, step, "train.steps = 7", "train.log_every = 2"))


@pytest.mark.slow
def test_a_step_without_such_state_is_as_before(tmp_path, capsys):
  assert "first step: same as before the restart, bit for bit" in resumed(tmp_path, capsys, Step)


@pytest.mark.parametrize(("step", "kind"), [(Table, "MutableHashTable"), (Queue, "FIFOQueue")])
def test_state_that_cannot_be_saved_is_refused(step, kind, tmp_path):
  with pytest.raises(UsageError, match=f"'state.*{kind}"):
    train(tmp_path, *SETTINGS, step=step, inputs=Points())
