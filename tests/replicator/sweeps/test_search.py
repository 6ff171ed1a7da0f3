"""Optuna's search: proposals, pruning, and memory of recorded trials."""

import csv
import dataclasses
import math

import pytest

from replicator.sweeps import search, space
from replicator.sweeps.sweep_file import SweepFile
from replicator.sweeps.trials import DONE, PRUNED, Record, Trial

FILE = SweepFile("x.py", "loss", optuna={
  "lr": ("log_uniform", 1e-3, 1.0), "n": ("int_uniform", 1, 3), "c": ("choice", ["a", [1, 2]])},
  trials=20, startup_trials=5)


def loss(record):
  """The distance of the learning rate from 0.1 as a logarithm."""
  return abs(math.log(record.bindings["lr"] / 0.1))


def searched(file=FILE, records=None, count=100):
  """Runs a search without trials; returns all records."""
  records = dict(records or {})
  series = {key: [(1, loss(record))] for key, record in records.items()}
  proposed = search.Proposed(file, records, False, series)
  while count and (trial := proposed.propose()):
    count -= 1
    record = Record(trial.id, trial.bindings, DONE, order=len(records))
    values = [(1, loss(record))]
    assert not proposed.observe(trial.id, values)
    proposed.ended(record, values)
    records[trial.id] = record
  return records


def test_the_search_does_better_than_chance():
  found = list(searched(dataclasses.replace(FILE, trials=80)).values())
  losses = list(map(loss, found))
  assert len(found) == 80
  assert sorted(losses[-20:])[10] < 0.9  # Half of all learning rates are farther off than 1.7.
  assert all(record.bindings["n"] in (1, 2, 3) for record in found)
  assert {space.text_of(record.bindings["c"]) for record in found} <= {'"a"', "[1, 2]"}


def test_a_resumed_search_knows_the_recorded_trials():
  first = searched(count=12)
  assert len(first) == 12
  bindings, narrow = next(iter(first.values())).bindings, Trial.make(FILE, {"lr": 1.0})
  others = {"other": Record("other", bindings, DONE),  # With other common settings,
            narrow.id: Record(narrow.id, {"lr": 1.0}, DONE)}  # and in another space.
  both = searched(records={**first, **others})
  assert len(both) == 22 and {*first, *others} < set(both)


def test_the_search_ends_when_all_points_were_tried():
  file = SweepFile("x.py", "loss", optuna={"lr": ("choice", [1, 2, 3])}, trials=30)
  assert len(searched(file)) == 3


@pytest.mark.parametrize("status, retry_failed, is_next", [
  ("stopped", False, True), ("waiting", False, True), ("failed", True, True),
  ("failed", False, False), ("pruned", True, False), ("done", True, False)])
def test_a_trial_that_has_not_ended_is_proposed_first(status, retry_failed, is_next):
  records = searched(count=3)
  second = list(records)[1]
  records[second].status = status
  proposed = search.Proposed(FILE, records, retry_failed, {key: [(1, 1.0)] for key in records})
  assert proposed.probe().bindings.keys() == {"lr", "n", "c"}
  assert (proposed.propose().id == second) == is_next


def test_a_trial_of_a_search_that_is_complete_may_still_be_left():
  file = dataclasses.replace(FILE, trials=3)
  records = searched(file)
  series = {key: [(1, 1.0)] for key in records}
  assert search.Proposed(file, records, False, series).probe() is None
  list(records.values())[2].status = "stopped"
  proposed = search.Proposed(dataclasses.replace(file, trials=1), records, False, series)
  assert proposed.count == 3 and proposed.probe() is not None


@pytest.mark.parametrize("goal", ["min", "max"])
def test_a_trial_is_pruned_from_a_step_on_if_it_is_worse_than_the_median(goal):
  worse = 1.0 if goal == "min" else -1.0
  file = SweepFile("x.py", "loss", goal, optuna={"lr": ("choice", [1, 2, 3, 4, 5])}, trials=5,
                   startup_trials=2, prune_after=10)
  proposed = search.Proposed(file, {}, False, {})

  def observed(*values: float) -> list[bool]:
    """Whether each point of a new trial, at the steps 5, 10, ..., lets it be pruned."""
    trial = proposed.propose()
    series = [(5 * number, value) for number, value in enumerate(values, 1)]
    found = [proposed.observe(trial.id, series[:seen]) for seen in range(1, len(series) + 1)]
    proposed.ended(Record(trial.id, trial.bindings, DONE), series)
    return found

  assert observed(0.0, 0.0, 0.0) == observed(5 * worse, 5 * worse, 5 * worse) == [False] * 3
  assert observed(9 * worse, 9 * worse, 9 * worse) == [False, True, True]
  assert observed(math.nan, math.nan, math.inf) == [False] * 3  # Nothing is known of it.
  assert observed(-worse, -worse, -worse) == [False] * 3


def test_a_poor_trial_is_pruned(sweep):
  search_of = lambda *rates: {
    "grid": None, "seeds": None, "trials": len(rates), "startup_trials": 2, "prune_after": 1,
    "optuna": {"lr": ("choice", list(rates))}, "params": [f"hold = '{sweep.hold}'"]}
  assert sweep.write(**search_of(0.3, 0.31)).run() == 0
  sweep.hold.touch()  # The next trials would never end by themselves.
  assert sweep.write(**search_of(0.3, 0.31, 5.0, 6.0)).run() == 0
  with (sweep.folder / "sweep.csv").open() as file:
    found = {float(row["lr"]): (row["status"], row["step"]) for row in csv.DictReader(file)}
  assert found == {0.3: (DONE, "3"), 0.31: (DONE, "3"), 5.0: (PRUNED, "3"), 6.0: (PRUNED, "3")}
  assert "2 of 4 done, 2 pruned" in sweep.out
  assert sweep.run() == 0
  assert list(sweep.logs().values()) == [[0]] * 4
