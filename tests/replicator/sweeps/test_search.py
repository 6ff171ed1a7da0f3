"""Optuna's search: proposals, pruning, and memory of recorded trials."""

import csv
import dataclasses
import math

from replicator.sweeps import search, space
from replicator.sweeps.sweep_file import SweepFile
from replicator.sweeps.trials import DONE, PRUNED, Record

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
  both = searched(records=first)
  assert len(both) == 20 and set(first) < set(both)


def test_the_search_ends_when_all_points_were_tried():
  file = SweepFile("x.py", "loss", optuna={"lr": ("choice", [1, 2, 3])}, trials=30)
  assert len(searched(file)) == 3


def test_a_stopped_trial_is_proposed_first():
  records = searched(count=3)
  stopped = list(records)[1]
  records[stopped].status = "stopped"
  proposed = search.Proposed(FILE, records, False, {key: [(1, 1.0)] for key in records})
  assert proposed.propose().id == stopped


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
