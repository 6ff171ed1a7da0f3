"""Checkpoints: all that was saved comes back, the right ones stay, and corruption is named."""

import errno
import math
import os
import re

from replicator import Evaluation, Replicator, UsageError, atomic
from replicator.errors import RunFailed
from replicator.step.variables import variables_of
from replicator.training.checkpoints import partial, store
from replicator.training.checkpoints.retention import Checkpoints
from replicator.training.checkpoints.saver import Saver
from tests.programs.counter import Counter
from tests.programs.refusals import refusal
from tests.programs.two_networks import Points, TwoNetworks
from tests.replicator.training.checkpoints.runs import (
  CENTRAL_2,
  assert_equal,
  content,
  save,
  train,
  values,
)
from tests.replicator.training.runs import MIRRORED_2

import keras
import numpy as np
import pytest
import tensorflow as tf

# ---- Saving and restoring -----------------------------------------------------------------------


def test_what_was_saved_comes_back(tmp_path):
  loop_state = {"seconds": 0.1 + 0.2, "window": {"sums": {"loss": float("inf")}, "count": 3}}
  checkpoints = save(tmp_path, saved := Counter(), 0)
  saved.count.assign(7.0)
  checkpoints.save(12, loop_state)
  saved.count.assign(8.0)  # While it is being written.
  checkpoints.wait()
  found = Saver(tmp_path, other := Counter()).restore()
  assert found == {**loop_state, "step": 12}
  assert other.count.numpy() == 7.0
  assert {path: float(value) for path, value in store.read(tmp_path).items()} == {"count": 7.0}


class Everything(tf.Module):
  """Variables of many types, each with the value `value`, and random generators."""

  def __init__(self, value: int):
    super().__init__()
    self.floats = [tf.Variable(tf.cast(tf.fill([2, 3], value), dtype))
                   for dtype in (tf.float16, tf.bfloat16, tf.float32, tf.float64)]
    self.numbers = {"int": tf.Variable(value), "long": tf.Variable(value, dtype=tf.int64),
                    "byte": tf.Variable(value, dtype=tf.uint8), "bool": tf.Variable(value > 1)}
    self.words = tf.Variable(["", f"word {value}"])
    self.none = tf.Variable(tf.zeros([0, 3]))
    self.grows = tf.Variable(tf.range(value), shape=[None])
    self.generator = tf.random.Generator.from_seed(value)
    self.dropout = keras.layers.Dropout(0.5, seed=value)


def test_every_type_of_variable_comes_back(tmp_path):
  saved, other = Everything(3), Everything(1)
  types = {path: value.dtype for path, value in values(other).items()}
  save(tmp_path, saved, 1)
  Saver(tmp_path, other).restore()
  assert_equal(other, values(saved))
  assert {path: value.dtype for path, value in values(other).items()} == types
  assert store.read(tmp_path)["floats/1"].dtype == tf.bfloat16.as_numpy_dtype


def test_what_cannot_be_saved_is_an_error(tmp_path):
  step = Counter()
  step.words = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
  assert "holds 'words', a MutableHashTable, which cannot be saved" in refusal(
      Saver, tmp_path, step)


def test_checkpoints_of_another_format_are_refused_and_not_skipped(tmp_path, monkeypatch):
  save(tmp_path, Counter(), 2)
  monkeypatch.setattr(store, "FORMAT", 2)
  said = refusal(Saver(tmp_path, Counter()).restore)
  assert "has the format 1, but this version reads 2; start again in another" in said


def test_a_worker_that_is_not_chief_writes_nothing_and_reads_from_the_chief(tmp_path):
  class Second(Replicator):
    worker_id = 1

  chief, worker = Counter(), Counter()
  chief.count.assign(3.0)
  save(tmp_path, chief, 4)
  (tmp_path / ".tmp-step-00000008").mkdir()  # The chief is writing.
  before = set(tmp_path.rglob("*"))
  checkpoints = Saver(tmp_path, worker, Second())
  assert checkpoints.restore()["step"] == 4
  assert worker.count.numpy() == 3.0
  checkpoints.save(8, {})
  checkpoints.wait()
  assert set(tmp_path.rglob("*")) == before


# ---- Steps that do not fit ----------------------------------------------------------------------


def test_a_step_that_differs_from_the_saved_one_is_an_error(tmp_path):
  save(tmp_path / "checkpoints", TwoNetworks(), 5)
  before = content(tmp_path)
  with pytest.raises(UsageError, match=r"step-00000005: \d+ variables do not fit this step: "
                                       r"'.* another --workdir, or --allow_partial_restore\n"):
    train(tmp_path, "train.steps = 10", "TwoNetworks.critic_width = 2", *MIRRORED_2,
          inputs=Points())
  assert content(tmp_path) == before


def test_what_does_not_fit_is_named(tmp_path):
  saved, other = Counter(), Counter()
  saved.gone, other.new = tf.Variable(1.0), tf.Variable(2.0)
  saved.shape, other.shape = tf.Variable([1.0]), tf.Variable([1.0, 2.0])
  saved.type, other.type = tf.Variable(1.0), tf.Variable(1)
  saved.count.assign(5.0)
  save(tmp_path, saved, 1)
  checkpoints = Saver(tmp_path, other)
  assert ("step-00000001: 4 variables do not fit this step: 'gone' is only in the checkpoint, "
          "'new' is not in the checkpoint, 'shape' was float32 [1] and is float32 [2], 1 more; use"
          ) in refusal(checkpoints.restore)
  assert other.count.numpy() == 0.0


def test_a_partial_restore_is_loud(tmp_path, capfd, monkeypatch):
  saved, other = Counter(), Counter()
  saved.gone, other.new = tf.Variable(1.0), tf.Variable(2.0)
  saved.count.assign(5.0)
  save(tmp_path, saved, 1)
  monkeypatch.setattr(partial, "_allowed", True)
  assert Saver(tmp_path, other).restore()["step"] == 1
  assert (other.count.numpy(), other.new.numpy()) == (5.0, 2.0)
  assert capfd.readouterr().err.splitlines() == [
      "warning: --allow_partial_restore: 'gone' is only in the checkpoint; it is not restored",
      "warning: --allow_partial_restore: 'new' is not in the checkpoint; it is not restored"]


class Whole(tf.Module):
  """Two numbers of which one is of no use without the other, and another one."""

  def __init__(self, shape, other=None):
    super().__init__()
    self.array, self.count = tf.Variable(tf.zeros(shape)), tf.Variable(0.0)
    self.single, self.other = tf.Variable(0.0), other

  def restored_together(self):
    return [self.array, self.count, self.other]


def test_what_belongs_together_is_restored_together_or_not_at_all(tmp_path, capfd, monkeypatch):
  saved, other = (Whole([1], Whole([size])) for size in (2, 3))
  for module in (saved, saved.other):
    module.array.assign_add(tf.ones_like(module.array))
    module.count.assign(5.0)
    module.single.assign(6.0)
  save(tmp_path, saved, 1)
  monkeypatch.setattr(partial, "_allowed", True)
  Saver(tmp_path, other).restore()
  assert {path: v.numpy().tolist() for path, v in variables_of(other).items()} == {
      "array": [0.0], "count": 0.0, "single": 6.0, "other/array": [0.0, 0.0, 0.0],
      "other/count": 0.0, "other/single": 0.0}
  assert capfd.readouterr().err.splitlines() == [
      "warning: --allow_partial_restore: 'other/array' was float32 [2] and is float32 [3]; it is "
      "not restored",
      "warning: --allow_partial_restore: 'array', 'count', 'other/count' and 1 more: useful only "
      "together with those; not restored either"]


def test_a_workdir_that_cannot_be_written_is_an_error_before_training(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(UsageError, match=r"file/run: cannot be written \(Not a directory\); choose"):
    train(tmp_path / "file" / "run", "train.steps = 5", step=Counter)


class Forgetful(tf.Module):
  """Uses a variable that no attribute leads to."""

  def __init__(self, use):
    super().__init__()
    # Because a set may have another order each time, no path leads through it.
    self.hidden = {tf.Variable(0.0, name="lost", aggregation=tf.VariableAggregation.MEAN).ref()}
    self.use = use

  def __call__(self):
    (hidden,) = self.hidden
    return {"value": self.use(hidden.deref())}


@pytest.mark.parametrize("name", ["a[1]b", "a*", "a?", "a\\b", "[ab", "{a,b}"])
def test_a_folder_whose_name_would_be_a_pattern_is_read(name, tmp_path):
  for other, value in (("aXb", 2.0), (name, 1.0)):
    (tmp_path / other).mkdir()
    store.write_bundle(tmp_path / other, {"x": np.float32(value)})
  assert store.read_bundle(tmp_path / name) == {"x": 1.0}


@pytest.mark.parametrize("use, bindings", [
    (lambda v: v + 1.0, [*MIRRORED_2, "train.checkpoint_every = 0"]),  # A stop saves all the same.
    (lambda v: v.assign_add(1.0), [*CENTRAL_2, "train.steps_per_call = 5"])],
    ids=["read", "assigned"])
def test_a_variable_that_a_restart_would_lose_is_an_error(use, bindings, tmp_path):
  with pytest.raises(UsageError, match=r"uses the variable .*lost.* no attribute of the"):
    train(tmp_path, "train.steps = 10", *bindings, step=lambda: Forgetful(use))


# ---- Which checkpoints stay ---------------------------------------------------------------------


def test_steps_are_in_the_order_of_numbers_and_not_of_names(tmp_path):
  save(tmp_path, Counter(), 99_999_999, 100_000_000)
  assert store.steps_of(tmp_path) == [99_999_999, 100_000_000]
  assert Saver(tmp_path, Counter()).restore()["step"] == 100_000_000


@pytest.mark.parametrize("settings, kept", [
    ({}, [8, 9, 10]), ({"keep_last": 20}, list(range(1, 11))),
    ({"keep_last": 1, "keep_best": "unknown"}, [10]),
    ({"keep_last": 1, "keep_best": "loss", "best_is": "max"}, [2, 10]),
    ({"keep_last": 1, "keep_every": 4, "keep_best": "loss"}, [3, 4, 8, 10])])
def test_what_is_kept_does_not_depend_on_a_restart(settings, kept, tmp_path):
  losses = {1: math.nan, 2: 3.0, 3: 1.0, 6: math.nan, 7: 1.0}  # The earliest of equals is kept.
  scalars = lambda step: {"loss": losses[step]} if step in losses else {}
  for numbers in (range(1, 6), range(6, 11)):
    save(tmp_path, Counter(), *numbers, scalars=scalars, **settings)
  assert store.steps_of(tmp_path) == kept


def test_a_setting_that_cannot_work_is_an_error():
  for name, value, least in (("keep_last", 0, 1), ("keep_every", -1, 0)):
    assert refusal(Checkpoints, **{name: value}) == (
        f"Checkpoints.{name} = {value}: must be at least {least}")


@pytest.mark.parametrize("name, message", [
    ("eval/mean", "'eval/mean': no scalar of that name .* This run has no evaluation"),
    ("cuont", "'cuont': no scalar .* Did you mean 'count'.* Choose one of: count, number, replica"),
    ("eval/means", "'eval/means'.* Did you mean 'eval/mean'.* Choose one of: eval/mean"),
    ("eval/best", None)])
def test_a_best_checkpoint_by_what_is_not_logged_is_an_error(name, message, tmp_path):
  evaluate = None if name == "eval/mean" else lambda step: Evaluation(
      {"best" if message is None else "mean": 1.0})
  settings = ["train.steps = 5", f"Checkpoints.keep_best = '{name}'"]
  if message is None:
    train(tmp_path, *settings, step=Counter, evaluate=evaluate)
    return
  with pytest.raises(UsageError, match=f"^Checkpoints.keep_best = {message}"):
    train(tmp_path, *settings, step=Counter, evaluate=evaluate)


@pytest.mark.parametrize("best, kept", [("min", [0, 4]), ("max", [4])])
def test_the_best_checkpoint_may_be_that_before_the_first_step(best, kept, tmp_path):
  train(tmp_path, "train.steps = 4", "train.eval_every = 2", "train.checkpoint_every = 2",
        "Checkpoints.keep_last = 1", "Checkpoints.keep_best = 'eval/count'",
        f"Checkpoints.best_is = '{best}'", step=Counter,
        evaluate=lambda step: Evaluation({"count": step.count.numpy()}))
  assert store.steps_of(tmp_path / "checkpoints") == kept


def test_a_rollback_forgets_later_checkpoints_also_if_it_crashes(tmp_path, monkeypatch):
  checkpoints = save(tmp_path, step := Counter(), 2, 4, 6)
  with monkeypatch.context() as patched:
    patched.setattr(atomic, "publish", lambda *arguments: 1 / 0)
    checkpoints.save(5, {})
    with pytest.raises(ZeroDivisionError):
      checkpoints.wait()
  assert Saver(tmp_path, Counter()).restore()["step"] == 4
  step.count.assign(50.0)
  checkpoints.save(5, {})
  checkpoints.wait()
  assert store.steps_of(tmp_path) == [2, 4, 5]
  assert store.read(tmp_path)["count"] == 50.0


# ---- Faults of the disk, and crashes -------------------------------------------------------------


CORRUPTIONS = {
    "truncated": lambda folder: os.truncate(folder / "variables.data-00000-of-00001", 3),
    "no index": lambda folder: (folder / "variables.index").unlink(),
    "no manifest": lambda folder: (folder / "manifest.json").unlink()}


@pytest.mark.parametrize("corrupt", CORRUPTIONS.values(), ids=CORRUPTIONS.keys())
def test_a_corrupt_checkpoint_is_reported_and_skipped(corrupt, tmp_path, capfd):
  step = Counter()
  checkpoints = save(tmp_path, step, 2)
  step.count.assign(4.0)
  checkpoints.save(4, {})
  checkpoints.wait()
  corrupt(tmp_path / "step-00000004")
  assert checkpoints.restore()["step"] == 2
  assert step.count.numpy() == 0.0
  reported = capfd.readouterr().err.splitlines()
  assert len(reported) == 1
  assert re.search(r"step-00000004 is corrupt \(.*\); using the checkpoint of step 2 instead",
                   reported[0])
  corrupt(tmp_path / "step-00000002")
  with pytest.raises(UsageError, match=r"4 is corrupt .* no earlier checkpoint is good; restore"):
    checkpoints.restore()


def test_a_save_that_fails_leaves_the_earlier_ones_and_the_next_one_says_so(tmp_path, monkeypatch):
  def full(*arguments):
    raise OSError(errno.ENOSPC, "No space left on device")

  checkpoints = save(tmp_path, Counter(), 1)
  before = content(tmp_path)
  message = r"step-00000002: could not be saved \(No space left"
  for find_out in (checkpoints.wait, lambda: checkpoints.save(3, {})):
    with monkeypatch.context() as patched:
      patched.setattr(os, "fsync", full)
      checkpoints.save(2, {})
      with pytest.raises(RunFailed, match=message) as failed:
        find_out()
    assert "\n" not in str(failed.value)
  assert content(tmp_path) == before
  assert len(list(tmp_path.iterdir())) == 1
  checkpoints.save(3, {})
  checkpoints.wait()
  assert store.steps_of(tmp_path) == [1, 3]


def test_a_checkpoint_whose_replacement_was_interrupted_is_restored(tmp_path):
  save(tmp_path, saved := Counter(), 1)
  saved.count.assign(2.0)
  save(tmp_path, saved, 2)
  # What `atomic` leaves when it is killed between its two renames.
  (tmp_path / "step-00000002").rename(tmp_path / ".old-step-00000002")
  (tmp_path / ".tmp-step-00000002").mkdir()
  left = sorted(path.name for path in tmp_path.iterdir())
  assert store.read(tmp_path)["count"] == 2.0  # A reader finds it, and changes nothing:
  assert sorted(path.name for path in tmp_path.iterdir()) == left  # a run may be at work there.
  assert store.steps_of(tmp_path) == [1, 2]
  assert Saver(tmp_path, restored := Counter()).restore()["step"] == 2
  assert restored.count.numpy() == 2.0
  assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]
