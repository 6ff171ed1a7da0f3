"""Early stopping: when, also in a run that resumes, and what is left."""

import json
import math
import types

from replicator import EarlyStopping, Evaluation
from replicator.errors import UsageError
from replicator.training.checkpoints import store
from tests.programs.counter import Counter
from tests.programs.logs import rows
from tests.replicator.training.runs import train

import pytest

PATIENT = ["train.eval_every = 2", "train.log_every = 2", "train.callbacks = [@EarlyStopping()]",
           "EarlyStopping.metric = 'eval/error'", "EarlyStopping.patience = 2"]
ERRORS = {0: 3.0, 2: math.nan, 4: 1.0, 6: 1.0, 8: 4.0, 10: 0.0, 12: 0.0}


def evaluate(counter):
  return Evaluation({"error": ERRORS[int(counter.count.numpy())]})


def test_a_run_that_does_not_improve_stops_early_and_stays_so(tmp_path, capsys):
  train(tmp_path, "train.steps = 12", *PATIENT, step=Counter, evaluate=evaluate)
  why = "eval/error has not improved on 1 (step 4) in EarlyStopping.patience = 2 evaluations"
  assert f"stopped early at step 8: {why}\n" in capsys.readouterr().out
  assert store.steps_of(tmp_path / "checkpoints") == [8]
  assert json.loads((tmp_path / "run.json").read_text())["ended"] == "stopped early"
  assert "stopped early at step 8 of 12" in (tmp_path / "report.html").read_text()
  logged = rows(tmp_path)
  train(tmp_path, "train.steps = 12", *PATIENT, step=Counter, evaluate=pytest.fail)
  printed = capsys.readouterr().out.replace("\n", " ")
  assert f"resumed at step 8: nothing is left to train, since {why}" in printed
  assert rows(tmp_path) == logged
  # With more patience, the run goes on.
  train(tmp_path, "train.steps = 12", *PATIENT[:-1], "EarlyStopping.patience = 3", step=Counter,
        evaluate=evaluate)
  assert rows(tmp_path)[-1]["step"] == 12


@pytest.mark.parametrize("until", [2, 6])
def test_a_resumed_run_stops_where_the_run_that_was_left_alone_does(until, tmp_path):
  for folder, parts in [("whole", [12]), ("parts", [until, 12])]:
    for steps in parts:
      train(tmp_path / folder, f"train.steps = {steps}", "train.checkpoint_every = 2", *PATIENT,
            "Checkpoints.keep_last = 9", step=Counter, evaluate=evaluate)
    assert store.steps_of(tmp_path / folder / "checkpoints") == [2, 4, 6, 8]
  assert rows(tmp_path / "whole") == rows(tmp_path / "parts")


def test_evaluations_count_from_before_a_run_has_patience(tmp_path):
  """The log has them, so it stops where a run does that was patient from its beginning."""
  train(tmp_path, "train.steps = 6", *PATIENT[:2], step=Counter, evaluate=evaluate)
  train(tmp_path, "train.steps = 12", *PATIENT, step=Counter, evaluate=evaluate)
  assert rows(tmp_path)[-1]["step"] == 8


def test_a_score_is_better_when_it_is_higher(tmp_path, capsys):
  train(tmp_path, "train.steps = 12", *PATIENT, "EarlyStopping.best_is = 'max'", step=Counter,
        evaluate=evaluate)
  assert "stopped early at step 4: eval/error has not improved on 3" in capsys.readouterr().out


def test_a_metric_that_is_never_a_number_has_not_improved(tmp_path, capsys):
  train(tmp_path, "train.steps = 12", *PATIENT, step=Counter,
        evaluate=lambda counter: Evaluation({"error": math.nan, "other": 1.0}))
  assert "stopped early at step 4: eval/error has not improved in" in capsys.readouterr().out


def test_an_evaluation_that_a_rollback_repeats_counts_once():
  run = types.SimpleNamespace(step=0, scalars={}, stopped=[])
  run.stop = run.stopped.append
  callback = EarlyStopping("eval/error", patience=2)
  for run.step, error, stops in [(2, 1.0, False), (4, 2.0, False), (4, 2.0, False), (6, 3.0, True)]:
    run.scalars["eval/error"] = error
    callback.evaluated(run, Evaluation({"error": error}))
    assert bool(run.stopped) == stops


def test_workers_stop_at_the_same_step(tmp_path):
  train(tmp_path, "train.steps = 12", *PATIENT, "Replicator.strategy = 'mirrored'",
        "Replicator.logical_cpus = 2", step=Counter, evaluate=evaluate)
  assert rows(tmp_path)[-1]["step"] == 8


@pytest.mark.parametrize("binding, message", [
    ("EarlyStopping.patience = 0", "EarlyStopping.patience = 0: must be at least 1"),
    ("EarlyStopping.metric = 'eval/eror'", "the evaluation does not return it. Did you "
     "mean 'eval/error'"),
    ("train.eval_every = 0", "EarlyStopping.metric = 'eval/error': the run has no evaluations")])
def test_patience_without_a_metric_is_refused(binding, message, tmp_path):
  kept = [each for each in PATIENT if each.split()[0] != binding.split()[0]]
  with pytest.raises(UsageError, match=message):
    train(tmp_path, "train.steps = 12", *kept, binding, step=Counter, evaluate=evaluate)
