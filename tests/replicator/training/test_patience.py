"""Early stopping: when, also in a run that resumes, and what is left."""

import json
import math

import pytest

from replicator import Evaluation
from replicator.checkpoints import checkpoint
from replicator.errors import UsageError
from tests.programs.counter import Counter
from tests.programs.logs import rows
from tests.replicator.training.runs import train

PATIENT = ["train.eval_every = 2", "train.log_every = 2", "Checkpoints.keep_best = 'eval/error'",
           "train.patience = 2"]
ERRORS = {0: 3.0, 2: math.nan, 4: 1.0, 6: 1.0, 8: 4.0, 10: 0.0, 12: 0.0}


def evaluate(counter):
  return Evaluation({"error": ERRORS[int(counter.count.numpy())]})


def test_a_run_that_does_not_improve_stops_early_and_stays_so(tmp_path, capsys):
  train(tmp_path, "train.steps = 12", *PATIENT, step=Counter, evaluate=evaluate)
  why = "eval/error has not improved on its 1 of step 4 in train.patience = 2 evaluations"
  assert f"stopped early at step 8: {why}\n" in capsys.readouterr().out
  assert checkpoint.steps_of(tmp_path / "checkpoints") == [8]
  assert json.loads((tmp_path / "run.json").read_text())["ended"] == "stopped early"
  assert "stopped early at step 8 of 12" in (tmp_path / "report.html").read_text()
  logged = rows(tmp_path)
  train(tmp_path, "train.steps = 12", *PATIENT, step=Counter, evaluate=pytest.fail)
  printed = capsys.readouterr().out.replace("\n", " ")
  assert f"resumed at step 8: nothing is left to train, since {why}" in printed
  assert rows(tmp_path) == logged
  # With more patience, the run goes on.
  train(tmp_path, "train.steps = 12", *PATIENT[:-1], "train.patience = 3", step=Counter,
        evaluate=evaluate)
  assert rows(tmp_path)[-1]["step"] == 12


@pytest.mark.parametrize("until", [2, 6])
def test_a_resumed_run_stops_where_the_run_that_was_left_alone_does(until, tmp_path):
  for folder, parts in [("whole", [12]), ("parts", [until, 12])]:
    for steps in parts:
      train(tmp_path / folder, f"train.steps = {steps}", "train.checkpoint_every = 2", *PATIENT,
            "Checkpoints.keep_last = 9", step=Counter, evaluate=evaluate)
    assert checkpoint.steps_of(tmp_path / folder / "checkpoints") == [2, 4, 6, 8]
  assert rows(tmp_path / "whole") == rows(tmp_path / "parts")


def test_patience_begins_where_a_run_first_has_it(tmp_path):
  for steps, patience in [(6, 0), (12, 2)]:
    train(tmp_path, f"train.steps = {steps}", "train.checkpoint_every = 2", *PATIENT[:-1],
          f"train.patience = {patience}", step=Counter, evaluate=evaluate)
  assert rows(tmp_path)[-1]["step"] == 12


def test_a_score_is_better_when_it_is_higher(tmp_path, capsys):
  train(tmp_path, "train.steps = 12", *PATIENT, "Checkpoints.best_is = 'max'", step=Counter,
        evaluate=evaluate)
  assert "stopped early at step 4: eval/error has not improved on its 3" in capsys.readouterr().out


@pytest.mark.parametrize("binding, message", [
    ("train.patience = -1", "train.patience = -1: must be a whole number of at least 0"),
    ("Checkpoints.keep_best = None", "train.patience = 2: needs the metric"),
    ("train.eval_every = 0", "keep_best = 'eval/error': nothing of that name")])
def test_patience_without_a_metric_is_refused(binding, message, tmp_path):
  kept = [each for each in PATIENT if each.split()[0] != binding.split()[0]]
  with pytest.raises(UsageError, match=message):
    train(tmp_path, "train.steps = 12", *kept, binding, step=Counter, evaluate=evaluate)
