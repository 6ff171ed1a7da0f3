"""Rows of trials, settings over their seeds, and `sweep.csv`."""

import csv
import math

import pytest

from replicator.sweeps import results


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
  steps, means = best.mean_series()
  assert list(steps) == [0, 10, 20] and means[1] == pytest.approx(1.315)
  assert math.isnan(found[0.1, "<small>"].spread())  # One seed of it failed.
  assert results.settings(rows, "max")[0].bindings["a.lr"] == 0.3


def test_csv_has_a_row_for_each_trial(rows, tmp_path, page_file):
  results.write_csv(tmp_path, rows, page_file)
  with (tmp_path / "sweep.csv").open() as file:
    table = list(csv.DictReader(file))
  assert len(table) == 9
  assert table[0]["id"] == rows[0].record.id
  failed = next(row for row in table if row["id"] == "t0")
  assert (failed["status"], failed["best eval/loss"], failed["message"], failed["seconds"]) == (
    "failed", "", "error: <it> broke", "61.0")
  assert table[-1]["in_sweep_file"] == "no" and table[-1]["net"] == ""
