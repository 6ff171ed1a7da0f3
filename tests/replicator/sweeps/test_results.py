"""Rows of trials, settings over their seeds, and `sweep.csv`."""

import csv
import dataclasses
import math

import pytest

from replicator.sweeps import results
from replicator.sweeps.trials import Metrics


def test_the_best_come_first_and_earlier_files_last(rows):
  assert [row.record.id for row in rows] == [
    "t1", "t2", "t3", "t4", "t6", "t5", "t0", "t7", "old"]
  finite = [row.best for row in rows if math.isfinite(row.best)]
  assert finite == sorted(finite) and len(finite) == 6
  assert rows[0].best == pytest.approx(1.0) and rows[0].last == 2.0 and rows[0].step == 20


def test_settings_are_the_mean_and_spread_over_seeds(rows):
  found = {(s.bindings["a.lr"], s.bindings["net"]): s for s in results.settings(rows, "min")}
  assert len(found) == 4
  best = found[0.3, "<small>"]
  assert best.mean() == pytest.approx((1.31 + 1.32) / 2)
  assert best.spread() == pytest.approx(0.01 / math.sqrt(2))
  assert math.isnan(found[0.1, "<small>"].spread())  # One seed of it failed.
  assert results.settings(rows, "max")[0].bindings["a.lr"] == 0.3


def test_the_trials_of_a_setting_come_in_the_order_of_their_seeds(rows):
  for row in rows:
    if row.record.bindings.get("train.seed") == 1:
      row.record.bindings["train.seed"] = 10
  for setting in results.settings(rows, "min"):
    assert [row.record.bindings["train.seed"] for row in setting.rows] == [2, 10]


def test_the_best_may_be_the_highest(rows, tmp_path, page_file):
  file = dataclasses.replace(page_file, goal="max")
  for row in rows:
    row.record.order *= -1  # Equals come in the order in which they began.
  found = results.rows(file, [row.record for row in rows], {"t1", "t2", "t4", "t7"},
                       lambda name: Metrics(tmp_path / "trials" / name))
  assert [(row.record.id, row.best) for row in found[:3]] == [("t4", 3.0), ("t2", 2.0), ("t1", 2.0)]
  assert [row.record.id for row in found[3:]] == ["t7", "t6", "t5", "t3", "old", "t0"]


def test_csv_has_a_row_for_each_trial(rows, tmp_path, page_file):
  results.write_csv(tmp_path, rows, page_file)
  with (tmp_path / "sweep.csv").open() as file:
    table = list(csv.DictReader(file))
  assert len(table) == 9
  assert table[0] == {
    "id": "t1", "status": "done", "a.lr": "0.1", "net": "<small>", "train.seed": "2", "step": "20",
    "seconds": "61.0", "best eval/loss": "1.0", "last eval/loss": "2.0", "in_sweep_file": "yes",
    "message": ""}
  failed = next(row for row in table if row["id"] == "t0")
  assert (failed["status"], failed["best eval/loss"], failed["message"], failed["seconds"]) == (
    "failed", "", "error: <it> broke", "61.0")
  assert table[-1]["in_sweep_file"] == "no" and table[-1]["net"] == ""
