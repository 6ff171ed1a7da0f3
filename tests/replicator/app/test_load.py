"""`replicator.load`: the step of any run, wherever it was trained, and nothing else is changed."""

import json
import pathlib
import random as python_random
import shutil
import sys

import replicator
from replicator import atomic
from replicator.app import config
from replicator.app.load import load_run, main_of_run
from replicator.step import context
from replicator.training.workdir.lock import owned
from tests.programs.logs import rows
from tests.replicator.app import counting_program

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf

BASE = ["train.steps = 4", "train.checkpoint_every = 1", "train.log_every = 1",
        "train.global_batch_size = 2", "Checkpoints.keep_last = 3",
        "train.check_first_step = False"]


def facts_for(file: pathlib.Path) -> dict:
  """The facts of `run.json` on a program that was started as a file."""
  return {"program": [file.name], "program_file": str(file), "argv": [],
          "working_directory": str(file.parent)}


def trained(folder: pathlib.Path, *bindings: str) -> pathlib.Path:
  """A run of the program, trained here; `run.json` says what a process of its own would."""
  config.parse([], [*BASE, *bindings])
  counting_program.counting(str(folder))
  facts = facts_for(pathlib.Path(counting_program.__file__))
  change_facts(folder, **{**facts, "program": ["-m", counting_program.__name__]})
  gin.clear_config()
  keras.config.set_floatx("float32")
  keras.config.set_dtype_policy("float32")
  return folder


def change_facts(run: pathlib.Path, **changes) -> None:
  facts = json.loads((run / "run.json").read_text())
  (run / "run.json").write_text(json.dumps({**facts, **changes}))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  return trained(tmp_path_factory.mktemp("run"), "scaled.factor = 3.0", "train.seed = 5",
                 "Checkpoints.keep_best = 'count'", "Checkpoints.best_is = 'min'")


@pytest.fixture(scope="module")
def spanning(tmp_path_factory):
  """A run of two replicas of two devices each, with another size."""
  return trained(tmp_path_factory.mktemp("spanning"), "Replicator.strategy = 'mirrored'",
                 "Replicator.logical_cpus = 4", "Replicator.devices_per_replica = 2",
                 "CountingStep.device = 1", "CountingStep.size = 5", "scaled.factor = 3.0",
                 "train.seed = 6")


@pytest.fixture(scope="module")
def double(tmp_path_factory):
  return trained(tmp_path_factory.mktemp("double"), "scaled.factor = 3.0",
                 "train.precision = 'float64'")


@pytest.fixture
def copied(run, tmp_path):
  """A copy of the run, to damage."""
  return pathlib.Path(shutil.copytree(run, tmp_path / "run"))


# ---- What is loaded -----------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "number"), [(None, 4), (3, 3), ("best", 1)])
def test_the_step_has_the_values_of_a_checkpoint(step, number, run):
  loaded, saved_at = load_run(run, step)
  assert saved_at == number
  assert loaded.module.count.numpy().tolist() == [number, number]


def test_its_class_is_the_one_that_an_import_gives(run):
  first, second = replicator.load(str(run)), replicator.load(run)
  assert type(first) is type(second) is counting_program.CountingStep
  assert first is not second


def test_a_run_of_replicas_that_span_devices_loads_on_one(spanning):
  step = replicator.load(spanning)
  assert step.count.numpy().tolist() == 5 * [4]
  assert step.own.numpy() == 4 * (1.0 + 3.0) / 2  # As its aggregation says.
  assert not hasattr(step.count, "values") and context.run.strategy.num_replicas_in_sync == 1
  assert step.apply(1.0) == 3.0


def test_bindings_override_those_of_the_run(copied, tmp_path):
  with (copied / "config.gin").open("a") as file:
    file.write(f"\ncounting.needs = '{tmp_path / 'moved'}'\n")
  text = (copied / "config.gin").read_text()
  (copied / "config.gin").write_text(text.replace("counting.needs = ''\n", "", 1))
  with pytest.raises(FileNotFoundError):
    replicator.load(copied)
  assert replicator.load(copied, bindings=["counting.needs = ''"]).count[0] == 4


def test_a_worker_of_a_cluster_loads_it_by_itself(run, monkeypatch):
  monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1"]}}')
  assert replicator.load(run).count[0] == 4


def test_its_callbacks_are_not_made(copied):
  text = (copied / "config.gin").read_text()
  assert "train.callbacks = ()" in text
  (copied / "config.gin").write_text(text.replace(
      "train.callbacks = ()", "train.callbacks = [@Profile()]"))
  replicator.load(copied)


def test_a_run_under_way_loads_and_nothing_is_written(copied):
  (copied / "checkpoints" / ".tmp-step-00000005").mkdir()  # Is being saved.
  with owned(copied):
    times = lambda: {path: path.stat().st_mtime_ns for path in [copied, *copied.rglob("*")]}
    before = times()
    assert replicator.load(copied).count[0] == 4
    assert times() == before


def test_a_checkpoint_that_its_run_removes_meanwhile_is_passed_over(copied, monkeypatch):
  newest, read = copied / "checkpoints" / "step-00000004", tf.train.load_checkpoint

  def slowly(prefix):
    if newest.exists():
      shutil.rmtree(newest)
    return read(prefix)

  monkeypatch.setattr(tf.train, "load_checkpoint", slowly)
  assert replicator.load(copied).count[0] == 3


PROGRAM = """
import sys
from replicator import app

def main(workdir):
  raise NotImplementedError

if __name__ == "__main__":
  main.words = sys.argv
  app.run(main)
"""


def test_a_program_gets_the_command_line_of_its_run(tmp_path, programs_forgotten):
  file = tmp_path / "load_test_words.py"
  file.write_text(PROGRAM)
  words = list(sys.argv)
  main = main_of_run({**facts_for(file), "argv": ["--size=3"]})
  assert main.words == [str(file), "--size=3"] and sys.argv == words


def test_a_package_is_run_by_its_main_module(tmp_path, programs_forgotten):
  package = tmp_path / "load_test_package"
  package.mkdir()
  (package / "__init__.py").write_text("")
  (package / "__main__.py").write_text(PROGRAM)
  sys.path.insert(0, str(tmp_path))
  main = main_of_run({**facts_for(package / "__main__.py"), "program": ["-m", package.name]})
  assert main is sys.modules["load_test_package.__main__"].main


@pytest.mark.parametrize("is_trusted", [True, False])
def test_modules_of_the_configuration_are_found_where_the_run_was_started(
    is_trusted, copied, tmp_path, programs_forgotten):
  (tmp_path / "load_test_mine.py").write_text("")
  change_facts(copied, working_directory=str(tmp_path))
  text = (copied / "config.gin").read_text()
  (copied / "config.gin").write_text(f"{text}\nimport load_test_mine\n")
  if is_trusted:
    assert load_run(copied)[1] == 4 and sys.path[-1] == str(tmp_path)
    return
  with pytest.raises(replicator.UsageError, match=(
      f"config.gin:.*No module named 'load_test_mine'; .*{tmp_path}: --yes also looks for")):
    load_run(copied, is_trusted=False)
  assert str(tmp_path) not in sys.path


# ---- What is left behind ------------------------------------------------------------------------


def test_the_process_is_then_as_after_the_training(run):
  step = replicator.load(run)
  assert step.apply(2.0) == 6.0  # The function reads its factor now.
  assert gin.query_parameter("scaled.factor") == 3.0
  assert context.run.seed == 5

  @gin.configurable(module="test_load")
  def defined_later(value=1):  # Gin is not locked.
    return value

  assert defined_later() == 1


def test_the_precision_is_that_of_the_run(double):
  step = replicator.load(double)
  assert step.count.dtype == tf.float64
  assert replicator.random.normal("z", [2]).dtype == tf.float64


def test_a_configuration_that_was_there_stays(run):
  config.parse([], ["scaled.factor = 3.0", "CountingStep.size = 7"])
  replicator.random.set_seed(11)
  numbers, state = np.random.get_state()[1].copy(), python_random.getstate()
  draw = replicator.random.uniform("a", [1]).numpy()
  step = replicator.load(run)
  assert step.count.shape == [2]
  assert gin.query_parameter("CountingStep.size") == 7 and gin.config_is_locked()
  assert context.run.seed == 11
  assert replicator.random.uniform("a", [1]).numpy() != draw  # The stream continues.
  assert (np.random.get_state()[1] == numbers).all() and python_random.getstate() == state


def test_two_runs_load_side_by_side_unless_they_read_different_values(run, copied, spanning,
                                                                      double):
  text = (copied / "config.gin").read_text()
  (copied / "config.gin").write_text(text.replace("scaled.factor = 3.0", "scaled.factor = 4.0"))
  first = replicator.load(run)
  assert replicator.load(spanning).count.shape == [5] and first.count.shape == [2]
  with pytest.raises(replicator.UsageError, match=(
      r"has scaled.factor = 4.0, but this process has 3.0")):
    replicator.load(copied)
  assert gin.query_parameter("scaled.factor") == 3.0
  with pytest.raises(replicator.UsageError, match=r"has train.precision = 'float64'"):
    replicator.load(double)
  assert first.apply(1.0) == 3.0 and keras.config.floatx() == "float32"
  gin.clear_config()
  assert replicator.load(copied).apply(1.0) == 4.0


def test_a_step_in_training_may_load_another(run, tmp_path):
  class Student(tf.Module):
    def __init__(self):
      super().__init__()
      self.count = tf.Variable(0.0, trainable=False)
      self.teacher = replicator.load(run, 2)

    def __call__(self):
      self.count.assign_add(1.0)
      return {"difference": self.count - self.teacher.apply(self.teacher.count[0])}

  config.parse([], ["train.steps = 2", "train.log_every = 1", "scaled.factor = 3.0",
                    "train.seed = 3"])
  student = replicator.train(Student, workdir=str(tmp_path / "student"))
  assert student.teacher.count[0] == 2 and context.run.seed == 3
  logged = rows(tmp_path / "student")
  assert [row["difference"] for row in logged if "difference" in row] == [-5.0, -4.0]


# ---- What is refused ----------------------------------------------------------------------------


def corrupt(run: pathlib.Path, step: int) -> None:
  path = next((run / "checkpoints" / f"step-{step:08d}").glob("variables.data*"))
  path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("harm, line", [  # `test_rerun` has the other damages of such files.
    (lambda run: (run / "run.json").write_text('{"pro'), "run.json: .*corrupt.*build its step by"),
    (lambda run: change_facts(run, **facts_for(pathlib.Path("/gone/step.py"))),
     "/gone/step.py, cannot be imported: the file is missing"),
    (lambda run: (run / "config.gin").write_text("import gone\n"),
     r"config.gin:1: ModuleNotFoundError: No module named 'gone'; the run was started in /.*: it "
     "is not there"),
    (lambda run: shutil.rmtree(run / "checkpoints"), "has no checkpoint")])
def test_a_damage_is_one_line(harm, line, copied):
  harm(copied)
  check_refused(copied, line)


@pytest.mark.parametrize("arguments, line", [
    ({"step": 7}, "has no checkpoint of step 7; choose one of the steps 1, 2, 3, 4"),
    ({"step": "newest"}, "step = 'newest': must be the step"),
    ({"step": 3}, r"step-00000003 is corrupt.*; choose one of the steps 1, 2, 4"),
    ({"step": "best", "bindings": ["Checkpoints.keep_best = None"]},
     "is unknown: this run does not set Checkpoints.keep_best"),
    ({"step": "best", "bindings": ["Checkpoints.keep_best = 'eval/fid'"]},
     "none was saved at a step that logged 'eval/fid'; choose one of the steps"),
    ({"bindings": ["CountingStep.size = 3"]}, r"'count' was float32 \[2\] and is float32 \[3\]; ")])
def test_what_cannot_be_loaded_is_one_line(arguments, line, copied):
  corrupt(copied, 3)
  check_refused(copied, line, **arguments)


def check_refused(run: pathlib.Path, line: str, **arguments) -> None:
  with pytest.raises(replicator.UsageError, match=line) as error:
    replicator.load(run, **arguments)
  assert "\n" not in str(error.value)
  assert not gin.config_str().strip()  # As it was.


@pytest.mark.parametrize(("name", "text", "line"), [
    ("load_test_early", "from replicator import app\napp.run(print)\n",
     "calls app.run.main. when it is imported"),
    ("load_test_other", "x = 1\n", "does not call replicator.app.run"),
    ("load_test_idle", "from replicator import app\nif __name__ == '__main__':\n  app.run(id)\n",
     "/run: its program did not call replicator.train"),
    ("load_test_bad", "import no_such_module_at_all\n",
     r"imported: .*load_test_bad\.py:1: ModuleNotFoundError: No module named 'no_such_module"),
    ("json", "", "another module is named 'json'")])
def test_a_program_must_be_one_that_can_be_imported(name, text, line, copied, tmp_path,
                                                    programs_forgotten):
  (tmp_path / f"{name}.py").write_text(text)
  change_facts(copied, **facts_for(tmp_path / f"{name}.py"))
  with pytest.raises(replicator.UsageError, match=line):
    replicator.load(copied)


def test_a_step_of_a_run_that_was_rolled_back_draws_what_the_run_would(copied):
  manifest = sorted((copied / "checkpoints").iterdir())[-1]
  atomic.publish(manifest, lambda folder: shutil.copytree(
      copied / "checkpoints" / manifest.name, folder, dirs_exist_ok=True,
      ignore=shutil.ignore_patterns("manifest.json")),
      {**(facts := atomic.facts_of(manifest)), "loop": {**facts["loop"], "rollbacks": 2}})
  replicator.load(copied)
  assert context.run.rollbacks == 2 and not context.run.is_loading


def test_a_run_of_a_notebook_is_loaded_by_the_function_that_trained_it(copied):
  change_facts(copied, program=["kernel.py"], program_file=None)
  with pytest.raises(replicator.UsageError, match=r"in a notebook.* replicator\.load\(run, main="):
    replicator.load(copied)
  step = replicator.load(copied, main=counting_program.counting)
  assert step.count.numpy().tolist() == [4.0, 4.0]
