"""Callbacks: when they are called, what they keep, and what their errors say."""

import json
import pathlib

import replicator
from replicator import Callback, Evaluation, Replicator, UsageError
from replicator.errors import Preempted, RunFailed
from replicator.step.hooks import Hook
from replicator.training.callbacks.callback import installed
from replicator.training.callbacks.calls import Calls
from replicator.training.checkpoints import store
from replicator.training.run import Run
from replicator.training.schedule import Schedule
from tests.programs.counter import Counter
from tests.programs.logs import rows
from tests.programs.refusals import refusal
from tests.programs.two_networks import Points, TwoNetworks
from tests.replicator.training.runs import MIRRORED_2, stopping_at, train

import gin
import numpy as np
import pytest
import tensorflow as tf


class Noting(Callback):
  """Notes every call, with the step."""

  def __init__(self, every=None):
    self.every = every
    self.notes = []

  def begin(self, run):
    self.notes.append(("begin", run.step))

  def after_steps(self, run):
    self.notes.append(("steps", run.step))

  def evaluated(self, run, found):
    self.notes.append(("evaluated", run.step, found.scalars["one"]))

  def saved(self, run):
    self.notes.append(("saved", run.saved_step))

  def end(self, run, error):
    self.notes.append(("end", run.step, error))


def trained(workdir, *callbacks, steps=6, **options):
  return replicator.train(Counter, workdir=workdir, callbacks=callbacks, **{
      "steps": steps, "log_every": 2, "eval_every": 3, "checkpoint_every": 3,
      "global_batch_size": 8, "evaluate": lambda step: Evaluation({"one": 1.0}), **options})


def test_callbacks_are_called_in_their_order_at_their_steps(tmp_path):
  by_log, by_steps = Noting(), Noting(every=4)
  trained(tmp_path, by_log, by_steps)
  evaluations = {("evaluated", step, 1.0) for step in (0, 3, 6)}
  steps = [note for note in by_log.notes if note[0] == "steps"]
  assert steps == [("steps", 2), ("steps", 4), ("steps", 6)]
  assert [note for note in by_steps.notes if note[0] == "steps"] == [("steps", 4), ("steps", 6)]
  for callback in (by_log, by_steps):
    assert callback.notes[0] == ("begin", 0) and callback.notes[-1] == ("end", 6, None)
    assert evaluations < set(callback.notes)


def test_each_checkpoint_is_told_once(tmp_path):
  class Waiting(Noting):
    def after_steps(self, run):
      run.saver.wait()

  callback = Waiting(every=1)
  trained(tmp_path, callback)
  assert [note for note in callback.notes if note[0] == "saved"] == [("saved", 3), ("saved", 6)]


def test_a_callback_sees_the_run_and_writes_into_the_line_of_its_step(tmp_path):
  seen = []

  class Doubling(Callback):
    def after_steps(self, run):
      seen.append((run.scalars["count"], int(run.module.count.numpy()), run.replicator.num_replicas,
                   run.workdir == tmp_path))
      run.writer.scalars(run.step, {"twice": 2 * run.scalars["count"]})
      run.say(f"line of step {run.step}")

  trained(tmp_path, Doubling(), replicator=Replicator("mirrored", logical_cpus=2))
  assert seen == [(1.5, 2, 2, True), (3.5, 4, 2, True), (5.5, 6, 2, True)]
  assert [(row["step"], row.get("twice")) for row in rows(tmp_path)] == [
      (0, None), (2, 3.0), (3, None), (4, 7.0), (6, 11.0)]


def test_gin_makes_callbacks_after_the_strategy(tmp_path):
  made = []

  @gin.configurable(module="tests")
  class Made(Callback, tf.Module):
    def __init__(self, number=0):
      tf.Module.__init__(self)
      made.append((number, tf.distribute.has_strategy(), self))
      self.value = tf.Variable(1.0)

  train(tmp_path, "train.steps = 1", "train.callbacks = [@Made()]", "Made.number = 3", *MIRRORED_2,
        step=Counter)
  assert [number for number, _, _ in made] == [3]


class Sum(Callback, tf.Module):
  """Adds up what was logged."""

  def __init__(self):
    super().__init__()
    self.total = tf.Variable(0.0, dtype=tf.float64)

  def after_steps(self, run):
    self.total.assign_add(run.scalars["count"])
    run.writer.scalars(run.step, {"total": self.total})


def test_a_callback_that_is_a_module_is_saved_and_restored(tmp_path):
  trained(tmp_path / "whole", Sum(), steps=12)
  with pytest.raises(Preempted):
    trained(tmp_path / "parts", Sum(), steps=12, before_call=stopping_at(7))
  resumed = Sum()
  trained(tmp_path / "parts", resumed, steps=12)
  assert float(resumed.total.numpy()) == 1.5 + 3.5 + 5.5 + 7.5 + 9.5 + 11.5
  assert rows(tmp_path / "whole") == rows(tmp_path / "parts")
  values = store.read(tmp_path / "parts" / "checkpoints")
  assert values["callbacks:Sum/total"] == resumed.total.numpy()


def test_a_module_that_is_left_out_at_the_resume_is_missed(tmp_path):
  trained(tmp_path, Sum(), steps=6)
  assert "'callbacks:Sum/total' is only in the checkpoint" in refusal(trained, tmp_path, steps=9)


def test_a_callback_stops_the_run_and_the_step_is_saved(tmp_path, capsys):
  class Stopping(Callback):
    every = 1

    def after_steps(self, run):
      if run.step == 5:
        run.stop("it is enough")

  counter = trained(tmp_path, Stopping(), steps=20)
  assert counter.count.numpy() == 5 and store.steps_of(tmp_path / "checkpoints") == [3, 5]
  assert "stopped early at step 5: it is enough" in capsys.readouterr().out
  assert json.loads((tmp_path / "run.json").read_text())["ended"] == "stopped early"


@pytest.mark.parametrize("method", ["begin", "after_steps", "evaluated", "saved", "end"])
def test_an_error_ends_the_run_with_the_callback_and_its_line(method, tmp_path):
  def fail(self, run, *others):
    raise ValueError("of the user")

  Failing = type("Failing", (Callback,), {method: fail, "every": 4})
  other = Noting()
  with pytest.raises(RunFailed) as raised:
    trained(tmp_path, other, Failing())
  said = str(raised.value)
  assert said.startswith(f"Failing.{method} at step ") and "ValueError: of the user" in said
  assert "test_callback.py" in said
  if method != "end":
    assert other.notes[-1][0] == "end" and isinstance(other.notes[-1][2], RunFailed)
  if method == "after_steps":  # What was saved stays.
    assert store.steps_of(tmp_path / "checkpoints") == [3]


def test_an_error_at_the_end_does_not_hide_the_first_one(tmp_path, capsys):
  class Failing(Callback):
    def after_steps(self, run):
      raise ValueError("first")

    def end(self, run, error):
      raise ValueError("second")

  with pytest.raises(RunFailed, match="first"):
    trained(tmp_path, Failing())
  assert "warning: Failing.end at step 2: " in capsys.readouterr().out


def test_bad_input_to_the_writer_names_the_callback(tmp_path):
  class Writing(Callback):
    def after_steps(self, run):
      run.writer.scalars(run.step, {"count": 1.0})  # The step logs it already.

  assert refusal(trained, tmp_path, Writing()) == (
      "Writing.after_steps at step 2: writer.scalars: 'count' is written twice at step 2; rename "
      "one of the two")


@pytest.mark.parametrize("callbacks, message", [
    ([Noting], "train.callbacks: Noting is a class; add parentheses: @Noting() in a gin"),
    ([3], "train.callbacks: 3 is not a callback; derive its class from replicator.Callback"),
    (Noting(), "must be a list, such as [@Histograms()] in a gin file"),
    ([Noting(every=-1)], "Noting.every = -1: must be a number of steps, or None for each"),
    ([Noting(every=3)], "Noting.every = 3: must be a multiple of train.steps_per_call = 2")])
def test_callbacks_of_another_form_are_refused(callbacks, message, tmp_path):
  assert message in refusal(
      replicator.train, Counter, workdir=tmp_path, steps=6, steps_per_call=2, log_every=2,
      eval_every=0, checkpoint_every=0, callbacks=callbacks)


def test_a_hook_of_a_callback_looks_into_the_step(tmp_path):
  class Looking(Callback, Hook):
    def __init__(self):
      self.hooks = [self]
      self.updates, self.received_at = [], []

    def updating(self, optimizer, variables, local, averaged):
      self.updates.append(optimizer.name)
      return averaged

    def ended(self, batch, outputs):
      return {"mean": tf.reduce_mean(tf.cast(batch[0]["x"], tf.float32))}

    def received(self, step, values):
      self.received_at.append((step, float(values["mean"])))

  looking = Looking()
  replicator.train(TwoNetworks, Points(), workdir=tmp_path, steps=3, global_batch_size=8,
                   log_every=3, callbacks=[looking])
  assert len(looking.updates) == 2  # Of two optimizers, traced once.
  assert [step for step, _ in looking.received_at] == [0, 1, 2]
  assert len({mean for _, mean in looking.received_at}) == 3


def test_installed_callbacks_come_first_and_a_check_leaves_out_what_only_tells(tmp_path):
  class Telling(Noting):
    in_checks = False

  outer, own, telling = Noting(), Noting(), Telling()
  with installed([outer], is_check=True):
    trained(tmp_path, own, telling)
  assert outer.notes and own.notes and not telling.notes
  trained(tmp_path / "later", own, telling)
  assert len([note for note in outer.notes if note[0] == "begin"]) == 1 and telling.notes


def test_summaries_of_a_step_and_of_an_evaluation_land_at_their_step(tmp_path):
  class Summing(tf.Module):
    def __init__(self):
      super().__init__()
      self.count = tf.Variable(0.0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

    def __call__(self):
      tf.summary.scalar("inside", replicator.step_number())
      return {"count": self.count.assign_add(1.0)}

  def evaluate(step):
    tf.summary.histogram("of_evaluation", np.arange(5.0))
    return Evaluation({"one": 1.0})

  for name, strategy in [("one", []), ("two", MIRRORED_2), ("calls", ["train.steps_per_call = 2"])]:
    folder = tmp_path / name
    train(folder, "train.steps = 4", "train.eval_every = 2", "train.log_every = 2", *strategy,
          step=Summing, evaluate=evaluate)
    found = [(event.step, value.tag) for file in folder.glob("events.out.tfevents.*")
             for record in tf.data.TFRecordDataset(str(file))
             for event in [tf.compat.v1.Event.FromString(record.numpy())]
             for value in event.summary.value]
    # In the loop of several steps, TensorFlow puts the name of the loop before it.
    assert [step for step, tag in found if tag in ("inside", "while/inside")] == [0, 1, 2, 3]
    assert [step for step, tag in found if tag == "of_evaluation"] == [0, 2, 4]


def test_summaries_of_a_step_under_xla_are_refused(tmp_path):
  def step():
    tf.summary.scalar("inside", 1.0)
    return {"one": 1.0}

  with pytest.raises(UsageError, match=r"tf.summary at \S+test_callback.py:\d+: a step cannot wri"):
    train(tmp_path, "train.steps = 1", "Replicator.jit_compile = True", step=lambda: step)


class Worker:
  """One of two workers, as callbacks know it; `other` is what the other one gives."""

  def __init__(self, number: int, other=lambda value: value):
    self.worker_id, self.num_workers, self.asked = number, 2, 0
    self._other = other

  def by_worker(self, value):
    self.asked += 1
    return np.array([value, self._other(value)])


def calls_of(worker: Worker, *callbacks):
  run = Run(Counter(), worker, pathlib.Path(), Schedule(10, 1, 2, 5, 0, callbacks), None, None)
  return run, Calls(run)


def test_the_chief_alone_calls_and_all_workers_stop():
  for number in (0, 1):
    here, everywhere = Noting(), Noting(every=3)
    everywhere.on_all_workers = True
    run, calls = calls_of(Worker(number, other=lambda value: 1.0), here, everywhere)
    run.step = 6  # When both are due.
    calls.after_steps()
    assert [len(each.notes) for each in (here, everywhere)] == [1 - number, 1]
    assert run.why_stopped == "another worker stopped the run"


def test_workers_ask_each_other_only_when_one_may_stop():
  worker = Worker(0, other=lambda value: 0.0)
  run, calls = calls_of(worker, Noting(every=3))
  for run.step in (1, 2, 3, 4, 5):
    calls.after_steps()
  assert worker.asked == 2  # At step 3, and after the evaluation of step 5.
  assert not run.why_stopped


def test_workers_must_call_at_the_same_steps():
  _, calls = calls_of(Worker(1, other=lambda value: value + 1), Noting(every=3))
  with pytest.raises(UsageError, match=r"Noting\.every and at: must be the same on all workers"):
    calls.begin()


def test_an_error_at_the_end_of_a_callback_does_not_skip_the_others():
  class Failing(Callback):
    def __init__(self, why):
      self.why = why

    def end(self, run, error):
      raise ValueError(self.why)

  last = Noting()
  _, calls = calls_of(Worker(0), Failing("first"), Failing("second"), last)
  calls.begin()
  with pytest.raises(RunFailed, match="first"):
    calls.end(None)
  [(_, _, error)] = last.notes[1:]
  assert "first" in str(error)


def test_an_error_in_an_installed_callback_stays_as_it_is(tmp_path):
  class Looking(Callback):
    def begin(self, run):
      raise KeyError("what a command looks for")

  with installed([Looking()]), pytest.raises(KeyError, match="what a command looks for"):
    trained(tmp_path)
