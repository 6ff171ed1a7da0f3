"""The records of a run: the Python values that change, and draws with a state of their own."""

import collections
import itertools
import random
import types

import replicator
from replicator.doctor.resume_recording import python_state, record
from replicator.errors import UsageError

import keras
import numpy as np
import pytest
import tensorflow as tf


class Step(tf.Module):
  """Keeps one of each kind of state in Python."""

  def __init__(self):
    super().__init__()
    self.count = 0
    self.seen = {"last": [1.0]}
    self.generator = np.random.default_rng(0)
    self.numbers = itertools.count()
    self.drawn = (i for i in itertools.count())
    self.queue = collections.deque([1])
    self.pyrandom = random.Random(0)
    self.layer = keras.layers.Dense(1)
    self.variable = tf.Variable(0)
    self.fixed = 3


def changed(root, change) -> list[str]:
  before = python_state("", root)
  assert python_state("", root) == before
  change()
  after = python_state("", root)
  return [path for path, digest in before.items() if after.get(path, digest) != digest]


def test_python_values_that_change_are_found_and_no_others():
  step = Step()
  next(step.drawn)

  def change():
    step.count += 1
    step.seen["last"][0] += 1
    step.generator.normal()
    next(step.numbers)
    next(step.drawn)
    step.queue[0] += 1
    step.pyrandom.random()
    step.variable.assign_add(1)

  found = {path.partition(".")[0] for path in changed(step, change)}
  assert found == {"count", "seen", "generator", "numbers", "drawn", "queue", "pyrandom"}


def test_what_is_too_large_is_data_and_no_state():
  step = Step()
  step.state, step.data = np.zeros(2 ** 17), np.zeros(2 ** 17 + 1)  # The first has 1 MiB.
  assert {"state", "data"} & python_state("", step).keys() == {"state"}


def test_a_generator_that_has_ended_differs():
  step = types.SimpleNamespace(few=(i for i in range(1)))
  next(step.few)
  assert changed(step, lambda: next(step.few, None)) == ["few.position"]


_calls = {"made": 0}


def test_the_globals_of_a_plain_function_are_recorded():
  assert changed(lambda batch: _calls, lambda: _calls.update(made=1)) == ["_calls.made"]


def test_what_changes_between_the_calls_is_recorded(tmp_path):
  calls = []

  def before_call(step, number):
    calls.append(number)
    np.random.normal()
    random.random()

  def main(workdir):
    replicator.train(lambda: lambda: {"loss": 0.0}, before_call=before_call, workdir=workdir)

  assert record(main, [], [], str(tmp_path), 3, 4).changed == [
      "before_call.calls.length", "the generator of np.random", "the generator of random"]


def test_what_does_not_save_the_step_cannot_be_resumed(tmp_path):
  main = lambda workdir: replicator.train(lambda: lambda: {"loss": np.nan}, workdir=workdir)

  class Stopping(replicator.Callback):
    def after_steps(self, run):
      run.stop("it is enough")

  short = lambda workdir: replicator.train(
      lambda: lambda: {"loss": 1.0}, workdir=workdir, callbacks=[Stopping()])
  with pytest.raises(UsageError, match="the experiment ended before step 2"):
    record(short, [], [], str(tmp_path / "short"), 2, 4)
  with pytest.raises(UsageError, match="step 2 was not saved, because its numbers are not finite"):
    record(main, [], ["Guard.action = 'warn'"], str(tmp_path / "run"), 2, 4)
