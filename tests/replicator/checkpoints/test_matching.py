"""A step that does not fit its checkpoint, or cannot be saved whole, is an error that says why."""

import pathlib
import re

import pytest
import tensorflow as tf

from replicator import UsageError
from replicator.checkpoints import checkpoint
from replicator.checkpoints.checkpoint import Checkpoints
from tests.programs.counter import Counter
from tests.programs.two_networks import Points, TwoNetworks
from tests.replicator.checkpoints.runs import CENTRAL_2, save, train
from tests.replicator.training.runs import MIRRORED_2


@pytest.fixture
def workdir(tmp_path) -> pathlib.Path:
  """The workdir of a run that was saved after 5 steps."""
  save(tmp_path / "checkpoints", TwoNetworks(), 5)
  return tmp_path


def content(folder: pathlib.Path) -> dict[pathlib.Path, bytes]:
  return {path: path.read_bytes() for path in folder.rglob("[!.]*") if path.is_file()}


def test_a_step_that_differs_from_the_saved_one_is_an_error(workdir):
  before = content(workdir)
  with pytest.raises(UsageError, match=r"step-00000005: \d+ variables do not fit this step: "
                                       r"'.* another --workdir, or --allow_partial_restore\n"):
    train(workdir, "train.steps = 10", "TwoNetworks.critic_width = 2", *MIRRORED_2, inputs=Points())
  assert content(workdir) == before


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


def test_a_workdir_that_cannot_be_written_is_an_error_before_training(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(UsageError, match=r"file/run: cannot be written \(Not a directory\); write"):
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


@pytest.mark.parametrize("use, bindings", [
    (lambda v: v + 1.0, [*MIRRORED_2, "train.checkpoint_every = 0"]),  # A stop saves all the same.
    (lambda v: v.assign_add(1.0), [*CENTRAL_2, "train.steps_per_call = 5"])],
    ids=["read", "assigned"])
def test_a_variable_that_a_restart_would_lose_is_an_error(use, bindings, tmp_path):
  with pytest.raises(UsageError, match=r"not reached through its attributes, such as '.*lost"):
    train(tmp_path, "train.steps = 10", *bindings, step=lambda: Forgetful(use))
