"""A run that was stopped and resumed is the run that was not."""

import concurrent.futures
import errno
import functools
import json
import math
import os
import pathlib
import re
import shutil
import signal
import threading
import time

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import plugin_event_accumulator

import replicator
from replicator import Evaluation, Replicator, UsageError, atomic
from replicator.app import config
from replicator.checkpoints import checkpoint
from replicator.checkpoints.checkpoint import Checkpoints
from replicator.errors import Preempted, RunFailed
from replicator.step.variables import variables_of
from replicator.training import preemption, run_state
from replicator.workdir.reader import TIMES
from tests.programs.two_networks import Points, TwoNetworks, evaluate, network

SMALL = ["train.global_batch_size = 8", "train.log_every = 5", "train.eval_every = 5",
         "train.checkpoint_every = 5"]
MIRRORED_2 = ["Replicator.strategy = 'mirrored'", "Replicator.logical_cpus = 2"]
MIRRORED_4 = ["Replicator.strategy = 'mirrored'", "Replicator.logical_cpus = 4"]
CENTRAL_2 = ["Replicator.strategy = 'central_storage'", "Replicator.logical_cpus = 2"]


@pytest.fixture(autouse=True)
def restored(without_curves):
  handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
  yield
  gin.clear_config()
  keras.config.set_floatx("float32")
  keras.config.set_dtype_policy("float32")
  left = {n: signal.signal(n, handler) for n, handler in handlers.items()}
  assert left == handlers  # Each training put them back.


def train(workdir: pathlib.Path, *bindings: str, step=TwoNetworks, inputs=None, evaluate=None):
  config.parse([], [*SMALL, *bindings])
  return replicator.train(step, inputs, evaluate, workdir=str(workdir))


def rows(workdir: pathlib.Path) -> list[dict]:
  """What was logged, without the time it took."""
  lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  return [{k: v for k, v in line.items() if k not in TIMES} for line in lines]


def values(step) -> dict[str, np.ndarray]:
  return {path: tf.convert_to_tensor(v).numpy() for path, v in variables_of(step).items()}


def assert_equal(step, expected: dict[str, np.ndarray]) -> None:
  """Every variable has the same bits."""
  found = values(step)
  assert found.keys() == expected.keys()
  for path, value in expected.items():
    np.testing.assert_array_equal(found[path], value, err_msg=path)


class Counter(tf.Module):
  """Counts its steps. Takes no inputs."""

  def __init__(self):
    super().__init__()
    self.count = tf.Variable(0.0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

  def __call__(self) -> dict[str, tf.Tensor]:
    self.count.assign_add(1.0)
    return {"count": self.count.read_value()}


# ---- Saving and restoring -----------------------------------------------------------------------


def save(folder: pathlib.Path, step, *numbers: int, scalars=None, **settings) -> Checkpoints:
  """Saves the step under each number in turn, with a loop state that has the number."""
  checkpoints = Checkpoints(folder, step, **settings)
  for number in numbers:
    checkpoints.save(number, {"seconds": float(number)}, scalars and scalars(number))
  checkpoints.wait()
  return checkpoints


def test_what_was_saved_comes_back(tmp_path):
  loop_state = {"seconds": 0.1 + 0.2, "window": {"sums": {"loss": float("inf")}, "count": 3}}
  checkpoints = save(tmp_path, saved := Counter(), 0)
  saved.count.assign(7.0)
  checkpoints.save(12, loop_state)
  saved.count.assign(8.0)  # While it is being written.
  checkpoints.wait()
  found = Checkpoints(tmp_path, other := Counter()).restore()
  assert found == {**loop_state, "step": 12}
  assert other.count.numpy() == 7.0
  assert {path: float(value) for path, value in checkpoint.read(tmp_path).items()} == {"count": 7.0}


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
  save(tmp_path, saved, 1)
  Checkpoints(tmp_path, other).restore()
  found, expected = bits(other), bits(saved)
  assert found == expected
  assert bits(Everything(1)) != expected
  assert checkpoint.read(tmp_path)["floats/1"].dtype == tf.bfloat16.as_numpy_dtype


def bits(step) -> dict[str, tuple]:
  values = {path: v.state if isinstance(v, tf.random.Generator) else v
            for path, v in variables_of(step).items()}
  return {path: (v.dtype, tuple(tf.convert_to_tensor(v).shape), v.numpy().tolist())
          for path, v in values.items()}


def test_a_step_without_variables_has_checkpoints_too(tmp_path):
  save(tmp_path, lambda: {}, 3)
  assert Checkpoints(tmp_path, lambda: {}).restore() == {"step": 3, "seconds": 3.0}
  assert checkpoint.read(tmp_path) == {}


def test_what_cannot_be_saved_is_an_error(tmp_path):
  step = Counter()
  step.words = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
  with pytest.raises(UsageError, match="holds 'words', a MutableHashTable, which cannot be saved"):
    Checkpoints(tmp_path, step)


def test_no_checkpoint_is_none(tmp_path):
  assert Checkpoints(tmp_path / "none", Counter()).restore() is None
  with pytest.raises(UsageError, match="none: holds no checkpoint"):
    checkpoint.read(tmp_path / "none")


def test_checkpoints_of_an_earlier_version_are_not_skipped(tmp_path):
  tf.train.CheckpointManager(tf.train.Checkpoint(), str(tmp_path), 1).save()
  with pytest.raises(UsageError, match="from another version of this program"):
    Checkpoints(tmp_path, Counter()).restore()


def test_a_worker_that_is_not_chief_writes_nothing_and_reads_from_the_chief(tmp_path):
  class Second(Replicator):
    worker_id = 1

  chief, worker = Counter(), Counter()
  chief.count.assign(3.0)
  save(tmp_path, chief, 4)
  (tmp_path / ".tmp-step-00000008").mkdir()  # The chief is writing.
  before = set(tmp_path.rglob("*"))
  checkpoints = Checkpoints(tmp_path, worker, Second())
  assert checkpoints.restore()["step"] == 4
  assert worker.count.numpy() == 3.0
  checkpoints.save(8, {})
  checkpoints.wait()
  assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("steps, message", [
    ([40, 20], "worker 1 restored step 20, the others step 40; all workers must see"),
    ([0, 40, 40], "worker 0 restored step 0, the others step 40;"),
    ([40, 20, 40, 0, 40], "worker 1 restored step 20, worker 3 restored step 0, the others")])
def test_workers_that_restored_different_steps_are_named(steps, message):
  with pytest.raises(UsageError, match=f"^--workdir: {message}"):
    run_state.check_agreement(steps)
  run_state.check_agreement([40] * 3)


# ---- Which checkpoints stay ---------------------------------------------------------------------


def test_the_newest_three_are_kept_across_a_restart(tmp_path):
  save(tmp_path, Counter(), *range(1, 6))
  assert checkpoint.steps_of(tmp_path) == [3, 4, 5]
  checkpoints = Checkpoints(tmp_path, Counter())
  assert checkpoints.restore()["step"] == 5
  checkpoints.save(6, {})
  checkpoints.wait()
  assert checkpoint.steps_of(tmp_path) == [4, 5, 6]


def test_steps_are_in_the_order_of_numbers_and_not_of_names(tmp_path):
  save(tmp_path, Counter(), 99_999_999, 100_000_000)
  assert checkpoint.steps_of(tmp_path) == [99_999_999, 100_000_000]
  assert Checkpoints(tmp_path, Counter()).restore()["step"] == 100_000_000


@pytest.mark.parametrize("settings, kept", [
    ({"keep_last": 1}, [10]), ({"keep_last": 2, "keep_every": 4}, [4, 8, 9, 10]),
    ({"keep_last": 1, "keep_best": "loss"}, [3, 10]),
    ({"keep_last": 1, "keep_best": "loss", "best_is": "max"}, [10]),
    ({"keep_last": 2, "keep_best": "loss", "best_is": "max"}, [9, 10])])
def test_policies(settings, kept, tmp_path):
  # Logged at every other step only; a NaN is never the best.
  losses = {1: 5.0, 3: 1.0, 5: float("nan"), 7: 2.0, 9: 1.5, 10: 9.0}
  scalars = lambda step: {"loss": losses[step]} if step in losses else {}
  save(tmp_path, Counter(), *range(1, 6), scalars=scalars, **settings)
  save(tmp_path, Counter(), *range(6, 11), scalars=scalars, **settings)
  assert checkpoint.steps_of(tmp_path) == kept


@pytest.mark.parametrize("binding, message", [
    ("keep_last = 0", "keep_last = 0: must be a whole number of at least 1"),
    ("keep_every = -1", "keep_every = -1: must be a whole number of at least 0"),
    ("keep_best = ''", "keep_best = '': must be the name of a scalar"),
    ("best_is = 'least'", "best_is = 'least': write 'min' or 'max'"),
    ("keep_best = 'eval/mean'", "keep_best = 'eval/mean': nothing of that name .* This run has no"),
    ("keep_best = 'cuont'", "keep_best = 'cuont': nothing .* Did you mean 'count'"),
    ("keep_best = 'eval/means'", "keep_best = 'eval/means'.* Did you mean 'eval/mean'")])
def test_a_policy_that_cannot_work_is_an_error(binding, message, tmp_path):
  evaluate = (lambda step: Evaluation({"mean": 1.0})) if "means" in binding else None
  with pytest.raises(UsageError, match=f"^Checkpoints.{message}"):
    train(tmp_path, "train.steps = 5", f"Checkpoints.{binding}", step=Counter, evaluate=evaluate)


def test_a_rollback_forgets_later_checkpoints(tmp_path):
  step = Counter()
  checkpoints = save(tmp_path, step, 2, 4, 6)
  step.count.assign(2.0)
  assert checkpoints.restore(newest=4)["step"] == 4
  assert checkpoints.restore(newest=5)["step"] == 4
  step.count.assign(50.0)
  checkpoints.save(5, {})
  checkpoints.wait()
  assert checkpoint.steps_of(tmp_path) == [2, 4, 5]
  assert checkpoint.read(tmp_path)["count"] == 50.0


@pytest.mark.parametrize("saved", [4, 5])
def test_a_crash_after_a_rollback_does_not_resume_what_was_abandoned(saved, tmp_path, monkeypatch):
  checkpoints = save(tmp_path, Counter(), 2, 4, 6)
  assert checkpoints.restore(newest=4)["step"] == 4
  assert checkpoints.restore(newest=5)["step"] == 4

  def crash(*arguments):
    raise RuntimeError("crash")
  monkeypatch.setattr(atomic, "publish", crash)
  checkpoints.save(saved, {})
  with pytest.raises(RuntimeError, match="crash"):
    checkpoints.wait()
  assert Checkpoints(tmp_path, Counter()).restore()["step"] == 4


# ---- Faults of the disk -------------------------------------------------------------------------


def flip(file: pathlib.Path) -> None:
  content = bytearray(file.read_bytes())
  content[len(content) // 2] ^= 1
  file.write_bytes(content)


CORRUPTIONS = {
    "truncated": lambda folder: os.truncate(folder / "variables.data-00000-of-00001", 3),
    "flipped byte": lambda folder: flip(folder / "variables.data-00000-of-00001"),
    "flipped byte of the index": lambda folder: flip(folder / "variables.index"),
    "flipped byte of the manifest": lambda folder: flip(folder / "manifest.json"),
    "no index": lambda folder: (folder / "variables.index").unlink(),
    "no data": lambda folder: (folder / "variables.data-00000-of-00001").unlink(),
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "empty manifest": lambda folder: os.truncate(folder / "manifest.json", 0)}


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
  with pytest.raises(UsageError, match=r"4 is corrupt .* no earlier checkpoint is good; put"):
    checkpoints.restore()


def test_every_byte_of_a_checkpoint_counts(tmp_path):
  save(tmp_path, Counter(), 1)
  folder = tmp_path / "step-00000001"
  for file in folder.iterdir():
    whole = file.read_bytes()
    for place in range(len(whole)):
      file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1:])
      with pytest.raises(atomic.Corrupt):
        atomic.check(folder)
    file.write_bytes(whole)
  atomic.check(folder)


@pytest.mark.parametrize("fails", ["rename", "fsync", "write"])
def test_a_save_that_fails_leaves_the_earlier_ones_and_nothing_else(fails, tmp_path, monkeypatch):
  def full(*arguments, **options):
    raise OSError(errno.ENOSPC, "No space left on device")

  step = Counter()
  checkpoints = save(tmp_path, step, 1)
  before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
  if fails == "rename":
    monkeypatch.setattr(pathlib.Path, "rename", full)
  elif fails == "fsync":
    monkeypatch.setattr(os, "fsync", full)
  else:
    monkeypatch.setattr(checkpoint, "_write_bundle", full)
  step.count.assign(2.0)
  checkpoints.save(2, {})
  with pytest.raises(RunFailed, match=r"step-00000002: could not be saved \(No space left") as full:
    checkpoints.wait()
  assert "\n" not in str(full.value)
  monkeypatch.undo()
  assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
  assert len(list(tmp_path.iterdir())) == 1
  checkpoints.save(3, {})
  checkpoints.wait()
  assert checkpoint.steps_of(tmp_path) == [1, 3]


def test_a_look_at_a_save_does_not_wait_for_it_and_reports_its_end(tmp_path, monkeypatch):
  looked = threading.Event()

  def fail(*arguments):
    looked.wait(timeout=60)
    raise OSError(errno.ENOSPC, "No space left on device")

  monkeypatch.setattr(checkpoint, "_write_bundle", fail)
  checkpoints = Checkpoints(tmp_path, Counter())
  checkpoints.check_written()
  checkpoints.save(1, {})
  checkpoints.check_written()
  looked.set()
  concurrent.futures.wait([checkpoints._saving])
  with pytest.raises(RunFailed, match="step-00000001: could not be saved"):
    checkpoints.check_written()
  checkpoints.check_written()


def test_a_save_first_reports_that_the_one_before_it_failed(tmp_path, monkeypatch):
  def full(*arguments):
    raise OSError(errno.ENOSPC, "No space left on device")

  checkpoints = save(tmp_path, Counter(), 1)
  with monkeypatch.context() as patched:
    patched.setattr(checkpoint, "_write_bundle", full)
    checkpoints.save(2, {})
    with pytest.raises(RunFailed, match="step-00000002: could not be saved"):
      checkpoints.save(3, {})
  assert checkpoint.steps_of(tmp_path) == [1]


@pytest.mark.parametrize("worker", [0, 1])
def test_a_checkpoint_whose_replacement_was_interrupted_is_restored(worker, tmp_path):
  class Worker(Replicator):
    worker_id = worker

  save(tmp_path, saved := Counter(), 1)
  saved.count.assign(2.0)
  checkpoints = save(tmp_path, saved, 2)
  rename = pathlib.Path.rename
  killed = threading.Event()

  def rename_once(path, target):
    if path.name.startswith(".tmp-step"):  # A crash between the two renames of `publish`.
      killed.set()
    if killed.is_set():
      raise SystemExit
    rename(path, target)

  with pytest.MonkeyPatch.context() as patched:
    patched.setattr(pathlib.Path, "rename", rename_once)
    patched.setattr(shutil, "rmtree", lambda *arguments, **options: None)
    checkpoints.save(2, {})
    with pytest.raises(SystemExit):
      checkpoints.wait()
  assert killed.is_set() and not (tmp_path / "step-00000002").exists()
  left = sorted(path.name for path in tmp_path.iterdir())
  assert checkpoint.read(tmp_path)["count"] == 2.0  # A reader finds it, and changes nothing:
  assert sorted(path.name for path in tmp_path.iterdir()) == left  # a run may be at work there.
  assert checkpoint.steps_of(tmp_path) == [1, 2]
  restored = Counter()
  assert Checkpoints(tmp_path, restored, Worker()).restore()["step"] == 2
  assert restored.count.numpy() == 2.0


def test_what_a_crash_left_behind_is_removed(tmp_path):
  save(tmp_path, Counter(), 1)
  (tmp_path / ".tmp-step-00000002").mkdir()
  (tmp_path / ".tmp-step-00000002" / "variables.index").write_text("half")
  assert Checkpoints(tmp_path, Counter()).restore()["step"] == 1
  assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


# ---- Strictness ---------------------------------------------------------------------------------


class Fewer(tf.Module):
  def __init__(self):
    super().__init__()
    self.generator = network(3)

  def __call__(self, batch):
    return {"loss": tf.reduce_mean(self.generator(batch["x"]))}


class More(TwoNetworks):
  def __init__(self):
    super().__init__()
    self.extra = network(3)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> pathlib.Path:
  workdir = tmp_path_factory.mktemp("trained")
  train(workdir, "train.steps = 5", inputs=Points())
  return workdir


@pytest.mark.parametrize("bindings, step", [
    (["TwoNetworks.critic_width = 2"], TwoNetworks),
    (["TwoNetworks.critic_width = 2", *MIRRORED_2], TwoNetworks),
    (["TwoNetworks.optimizer = @sgd", "sgd.learning_rate = 0.1"], TwoNetworks),
    (["train.precision = 'float64'"], TwoNetworks), ([], Fewer), ([], More)],
    ids=["shape", "shape, mirrored", "optimizer", "precision", "fewer", "more"])
def test_a_step_that_differs_from_the_saved_one_is_an_error(bindings, step, trained):
  before = rows(trained)
  with pytest.raises(UsageError, match=r"step-00000005: \d+ variables do not fit this step: "
                                       r"'.* another --workdir, or --allow_partial_restore\n"):
    train(trained, "train.steps = 10", *bindings, step=step, inputs=Points())
  assert rows(trained) == before


def test_what_does_not_fit_is_named(tmp_path):
  saved, other = Counter(), Counter()
  saved.gone, other.new = tf.Variable(1.0), tf.Variable(2.0)
  saved.shape, other.shape = tf.Variable([1.0]), tf.Variable([1.0, 2.0])
  saved.type, other.type = tf.Variable(1.0), tf.Variable(1)
  saved.count.assign(5.0)
  save(tmp_path, saved, 1)
  checkpoints = Checkpoints(tmp_path, other)
  with pytest.raises(UsageError, match=re.escape(
      "step-00000001: 4 variables do not fit this step: 'gone' is only in the checkpoint, "
      "'new' is not in the checkpoint, 'shape' was float32 [1] and is float32 [2], 1 more; use")):
    checkpoints.restore()
  assert other.count.numpy() == 0.0
  other.type = tf.Variable(1.0)
  with pytest.raises(UsageError, match=re.escape("3 variables do not fit") + ".*2]; use the conf"):
    Checkpoints(tmp_path, other).restore()


def test_a_partial_restore_is_loud(tmp_path, capfd):
  saved, other = Counter(), Counter()
  saved.gone, other.new = tf.Variable(1.0), tf.Variable(2.0)
  saved.count.assign(5.0)
  save(tmp_path, saved, 1)
  checkpoint.allow_partial_restore(True)
  try:
    assert Checkpoints(tmp_path, other).restore()["step"] == 1
  finally:
    checkpoint.allow_partial_restore(False)
  assert (other.count.numpy(), other.new.numpy()) == (5.0, 2.0)
  assert capfd.readouterr().err.splitlines() == [
      "warning: --allow_partial_restore: 'gone' is only in the checkpoint; it is not restored",
      "warning: --allow_partial_restore: 'new' is not in the checkpoint; it is not restored"]


def test_the_workdir_of_another_experiment_is_an_error(trained, tmp_path):
  workdir = shutil.copytree(trained, tmp_path / "copy")
  facts = json.loads((workdir / "run.json").read_text())
  (workdir / "run.json").write_text(json.dumps({**facts, "experiment": "other"}))
  before = {path: path.read_bytes() for path in workdir.rglob("*") if path.is_file()}
  with pytest.raises(UsageError, match="copy: holds a run of the experiment 'other', not of '"):
    train(workdir, "train.steps = 10", inputs=Points())
  assert {path: path.read_bytes() for path in workdir.rglob("*") if path.is_file()} == before


def test_a_workdir_that_cannot_be_written_is_an_error_before_training(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(UsageError, match=r"file/run: cannot be written \(Not a directory\); write"):
    train(tmp_path / "file" / "run", "train.steps = 5", step=Counter)


# ---- Nothing is lost ----------------------------------------------------------------------------


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


def read(v):
  return v + 1.0


def assign(v):
  v.assign_add(1.0)
  return tf.constant(0.0)


@pytest.mark.parametrize("bindings", [[], MIRRORED_2, CENTRAL_2, ["train.steps_per_call = 5"]],
                         ids=["default", "mirrored", "central", "steps_per_call"])
@pytest.mark.parametrize("use", [read, assign])
def test_a_variable_that_a_restart_would_lose_is_an_error(use, bindings, tmp_path):
  with pytest.raises(UsageError, match=r"not reached through its attributes, such as '.*lost"):
    train(tmp_path, "train.steps = 10", *bindings, step=lambda: Forgetful(use))


@pytest.mark.parametrize("bindings", [[], MIRRORED_2, CENTRAL_2],
                         ids=["default", "mirrored", "central"])
def test_a_step_with_a_generator_continues_its_numbers(bindings, tmp_path):
  class Drawing(tf.Module):
    def __init__(self):
      super().__init__()
      self.generator = tf.random.Generator.from_seed(1, alg="philox")

    def __call__(self):
      return {"x": self.generator.uniform([])}

  for workdir, all_steps in {"whole": [10], "parts": [5, 10]}.items():
    for steps in all_steps:
      train(tmp_path / workdir, f"train.steps = {steps}", *bindings, step=Drawing)
  assert rows(tmp_path / "parts") == rows(tmp_path / "whole")


# ---- A resumed run is the run that was not stopped ----------------------------------------------


BY_NAME = {"default": [], "mirrored": [*MIRRORED_2, "train.steps_per_call = 5"],
           "central": CENTRAL_2}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
  """A function: what 15 steps log and what their variables are, under the strategy of a name."""
  @functools.cache
  def run(name: str):
    workdir = tmp_path_factory.mktemp(name)
    step = train(workdir, "train.steps = 15", *BY_NAME[name], inputs=Points(), evaluate=evaluate)
    assert [row["step"] for row in rows(workdir)] == [0, 5, 10, 15]
    return rows(workdir), values(step)
  return run


@pytest.mark.parametrize("name", ["default", "central"])
def test_a_resumed_run_is_bitwise_the_unbroken_one(name, unbroken, tmp_path):
  expected_rows, expected_values = unbroken(name)
  for steps in (10, 15):
    step = train(tmp_path, f"train.steps = {steps}", *BY_NAME[name], inputs=Points(),
                 evaluate=evaluate)
  assert rows(tmp_path) == expected_rows
  assert_equal(step, expected_values)
  assert json.loads((tmp_path / "run.json").read_text())["resumed"][0]["step"] == 10


@pytest.mark.parametrize("parts", [
    [MIRRORED_2, []],
    pytest.param([MIRRORED_2, MIRRORED_4, MIRRORED_2, [], CENTRAL_2], marks=pytest.mark.slow)],
    ids=["2, 1", "2, 4, 2, 1, central"])
def test_a_run_continues_on_other_numbers_of_replicas(parts, tmp_path):
  float64 = "train.precision = 'float64'"
  train(tmp_path / "whole", f"train.steps = {5 * len(parts)}", float64, *parts[0], inputs=Points())
  for i, bindings in enumerate(parts):
    train(tmp_path / "parts", f"train.steps = {5 * i + 5}", float64, *bindings, inputs=Points())
  for found, expected in zip(rows(tmp_path / "parts"), rows(tmp_path / "whole"), strict=True):
    assert found == pytest.approx(expected, rel=1e-9)


def test_a_crashed_run_resumes_with_the_means_since_its_last_log_point(tmp_path):
  # Logs at 4, 8, 12, ...; saved at 5 and 10; crashes at 13, after a half-written line.
  setting = ["train.log_every = 4", "train.checkpoint_every = 5", "train.eval_every = 13",
             "train.steps = 20"]

  def crash(networks):
    if networks.optimizers["critic"].keras_optimizer.iterations.numpy() == 13:
      raise OSError("the disk is full")
    return Evaluation({})

  unbroken = train(tmp_path / "whole", *setting, inputs=Points(),
                   evaluate=lambda networks: Evaluation({}))
  with pytest.raises(OSError, match="the disk is full"):
    train(tmp_path / "parts", *setting, inputs=Points(), evaluate=crash)
  assert [row["step"] for row in rows(tmp_path / "parts")] == [4, 8, 12]
  with (tmp_path / "parts" / "metrics.jsonl").open("a") as metrics:
    metrics.write('{"step": 13, "secon')
  resumed = train(tmp_path / "parts", *setting, inputs=Points(),
                  evaluate=lambda networks: Evaluation({}))
  assert [row["step"] for row in rows(tmp_path / "whole")] == [4, 8, 12, 16, 20]
  assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
  assert_equal(resumed, values(unbroken))


def test_pictures_after_the_last_checkpoint_are_removed(tmp_path):
  def draw(counter):
    if (step := counter.count.numpy()) == 8 and not (tmp_path / "again").exists():
      raise KeyboardInterrupt
    return Evaluation({"twice": 2 * step}, np.zeros([2, 2, 3], np.uint8))

  setting = ["train.eval_every = 2", "train.checkpoint_every = 3"]
  with pytest.raises(KeyboardInterrupt):
    train(tmp_path, "train.steps = 10", *setting, step=Counter, evaluate=draw)
  (tmp_path / "again").touch()
  train(tmp_path, "train.steps = 6", *setting, step=Counter, evaluate=pytest.fail)
  assert [row["step"] for row in rows(tmp_path)] == [0, 2, 4, 5, 6]
  assert len(list((tmp_path / "samples").iterdir())) == 4
  train(tmp_path, "train.steps = 10", *setting, step=Counter, evaluate=draw)
  events = plugin_event_accumulator.EventAccumulator(str(tmp_path))
  events.Reload()
  assert [event.step for event in events.Tensors("eval/twice")] == [0, 2, 4, 6, 8, 10]


def test_a_finished_run_stays_as_it_is(tmp_path, capsys):
  step = train(tmp_path, "train.steps = 5", inputs=Points(), evaluate=evaluate)
  before = {name: (tmp_path / name).read_text() for name in ("metrics.jsonl", "config.gin")}
  capsys.readouterr()
  again = train(tmp_path, "train.steps = 5", inputs=Points(), evaluate=pytest.fail)
  assert {name: (tmp_path / name).read_text() for name in before} == before
  assert capsys.readouterr().out.splitlines() == [
      "resumed at step 5", f"done: {tmp_path / 'report.html'}"]
  assert_equal(again, values(step))
  assert json.loads((tmp_path / "run.json").read_text())["evaluation"] == "mean of 8 samples"


# ---- Asked to stop ------------------------------------------------------------------------------


@pytest.mark.parametrize("number, name, stops_at", [
    (signal.SIGTERM, "default", 6), (signal.SIGINT, "mirrored", 10)])
def test_a_preempted_run_saves_and_resumes(number, name, stops_at, unbroken, tmp_path):
  def ask(networks):
    if networks.optimizers["critic"].keras_optimizer.iterations.numpy() == 5:
      os.kill(os.getpid(), number)
    return evaluate(networks)

  expected_rows, expected_values = unbroken(name)
  setting = ["train.steps = 15", "train.checkpoint_every = 0", *BY_NAME[name]]
  with pytest.raises(Preempted, match=f"stopped at step {stops_at}, which is saved") as stopped:
    train(tmp_path, *setting, inputs=Points(), evaluate=ask)
  assert stopped.value.step == stops_at  # One call after it asked.
  step = train(tmp_path, *setting, inputs=Points(), evaluate=ask)
  assert rows(tmp_path) == expected_rows
  assert_equal(step, expected_values)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_at_the_first_evaluation_saves_step_0(number, tmp_path):
  def ask(counter):
    if not checkpoint.steps_of(tmp_path / "checkpoints"):
      os.kill(os.getpid(), number)
    return Evaluation({"count": counter.count.numpy()})
  with pytest.raises(Preempted, match="stopped at step 0, which is saved"):
    train(tmp_path, "train.steps = 5", step=Counter, evaluate=ask)
  train(tmp_path, "train.steps = 5", step=Counter, evaluate=ask)
  assert [row["eval/count"] for row in rows(tmp_path)] == [0.0, 5.0]


def test_a_stop_at_a_saved_step_keeps_what_was_logged_there(tmp_path):
  # A checkpoint without its scalars could not be the best one any more.
  def ask(counter, step):
    if step == 4:
      os.kill(os.getpid(), signal.SIGTERM)

  config.parse([], [*SMALL, "train.steps = 10"])
  with pytest.raises(Preempted, match="stopped at step 5, which is saved"):
    replicator.train(Counter, before_call=ask, workdir=str(tmp_path))
  saved = atomic.facts_of(tmp_path / "checkpoints" / "step-00000005")
  assert saved["scalars"] == {"count": 3.0}
  assert saved["loop"]["window"]["sums"] == {}
  assert json.loads((tmp_path / "run.json").read_text())["ended"] == "interrupted"


def test_a_stop_between_two_log_points_loses_nothing(tmp_path):
  setting = ["train.steps_per_call = 2", "train.log_every = 100000000", "train.eval_every = 0",
             "train.checkpoint_every = 0"]
  threads = []

  def make_step():
    counter = Counter()
    threads.append(threading.Thread(target=ask, args=[counter]))
    threads[0].start()
    return counter

  def ask(counter):
    while counter.count.numpy() < 2:  # The training has not taken its first step.
      time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)

  with pytest.raises(Preempted) as stopped:
    train(tmp_path, "train.steps = 100000000", *setting, step=make_step)
  threads[0].join()
  done = stopped.value.step
  assert done > 0 and done % 2 == 0
  assert not (tmp_path / "metrics.jsonl").exists()
  counter = train(tmp_path, f"train.steps = {done + 10}", *setting, step=Counter)
  assert counter.count.numpy() == done + 10
  # The mean of 1, 2, ..., over both parts.
  assert rows(tmp_path) == [{"step": done + 10, "count": (done + 11) / 2}]


def test_the_same_press_of_ctrl_c_may_arrive_twice(tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(preemption, "SAME_PRESS_SECONDS", math.inf)
  def ask_twice(counter):
    if counter.count.numpy() == 5:
      os.kill(os.getpid(), signal.SIGINT)
      os.kill(os.getpid(), signal.SIGINT)
    return Evaluation({})
  with pytest.raises(Preempted, match="stopped at step 6, which is saved"):
    train(tmp_path, "train.steps = 100", step=Counter, evaluate=ask_twice)
  assert capsys.readouterr().out.splitlines().count(
      "stopping after this step; Ctrl-C once more to stop at once") == 1


def test_a_second_press_of_ctrl_c_does_not_wait(tmp_path, monkeypatch):
  monkeypatch.setattr(preemption, "SAME_PRESS_SECONDS", 0.0)
  def ask_twice(counter):
    if counter.count.numpy() == 5:
      os.kill(os.getpid(), signal.SIGINT)
      os.kill(os.getpid(), signal.SIGINT)
      threading.Event().wait(60)
      pytest.fail("the second signal did not end the wait")
    return Evaluation({})
  with pytest.raises(KeyboardInterrupt):
    train(tmp_path, "train.steps = 100", step=Counter, evaluate=ask_twice)


def test_a_second_sigterm_waits(tmp_path):
  def ask_twice(counter):
    if counter.count.numpy() == 5:
      os.kill(os.getpid(), signal.SIGTERM)
      os.kill(os.getpid(), signal.SIGTERM)
    return Evaluation({})
  with pytest.raises(Preempted) as stopped:
    train(tmp_path, "train.steps = 100", step=Counter, evaluate=ask_twice)
  assert stopped.value.step == 6


def test_a_run_without_checkpoints_says_what_a_stop_would_lose(tmp_path):
  # A stop saves all the same.
  with pytest.raises(UsageError, match="not reached through its attributes"):
    train(tmp_path, "train.steps = 5", "train.checkpoint_every = 0",
          step=lambda: Forgetful(read))


def test_a_signal_at_the_end_of_a_run_does_not_make_it_fail(tmp_path):
  def ask(counter):
    if counter.count.numpy() == 5:
      os.kill(os.getpid(), signal.SIGTERM)
    return Evaluation({})
  assert train(tmp_path, "train.steps = 5", step=Counter, evaluate=ask).count.numpy() == 5
  assert (tmp_path / "report.html").exists()


def test_all_variables_of_a_replicated_step_are_saved_under_every_strategy(synchronous, tmp_path):
  assert isinstance(synchronous, Replicator)
  with synchronous.scope():
    step, other = TwoNetworks(), TwoNetworks()
    for i, variable in enumerate(variables_of(step).values()):
      variable.assign(tf.cast(tf.fill(variable.shape, i), variable.dtype))
    save(tmp_path, step, 1, replicator=synchronous)
    Checkpoints(tmp_path, other, synchronous).restore()
  for i, (path, variable) in enumerate(variables_of(other).items()):
    copies = variable.values if hasattr(variable, "values") else [variable]
    for copy in copies:
      np.testing.assert_array_equal(copy, np.full(variable.shape, i), err_msg=path)
