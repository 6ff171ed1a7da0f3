"""A run that a signal asks to stop saves first, and loses nothing."""

import json
import os
import signal

import pytest

from replicator import Evaluation, atomic
from replicator.checkpoints import checkpoint
from replicator.errors import Preempted
from tests.programs.counter import Counter
from tests.programs.logs import rows
from tests.replicator.checkpoints.runs import train


def test_a_stop_at_the_first_evaluation_saves_step_0(tmp_path):
  def ask(counter):
    if not checkpoint.steps_of(tmp_path / "checkpoints"):
      os.kill(os.getpid(), signal.SIGTERM)
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

  with pytest.raises(Preempted, match="stopped at step 5, which is saved"):
    train(tmp_path, "train.steps = 10", step=Counter, before_call=ask)
  saved = atomic.facts_of(tmp_path / "checkpoints" / "step-00000005")
  assert saved["scalars"] == {"count": 3.0, "number": 2.0, "replica": 0.0}
  assert saved["loop"]["window"]["sums"] == {}
  assert json.loads((tmp_path / "run.json").read_text())["ended"] == "interrupted"


def test_a_signal_at_the_end_of_a_run_does_not_make_it_fail(tmp_path):
  def ask(counter):
    if counter.count.numpy() == 5:
      os.kill(os.getpid(), signal.SIGTERM)
    return Evaluation({})
  assert train(tmp_path, "train.steps = 5", step=Counter, evaluate=ask).count.numpy() == 5
  assert (tmp_path / "report.html").exists()
