"""The results of trials, settings over their seeds, `sweep.csv` and `sweep.html`."""

import csv
import json
import math
import re

from replicator.tools.sweeps import results
from replicator.tools.sweeps.results import TrialResult
from replicator.tools.sweeps.sweep_file import SweepFile
from replicator.tools.sweeps.trials import Record

import pytest


def test_metrics_are_read_as_they_grow(tmp_path):
  result = TrialResult(Record("t", {}), SweepFile("x.py", "a"))
  result.read(tmp_path)
  assert result.series == () and result.step is None and math.isnan(result.best())
  path = tmp_path / "metrics.jsonl"
  path.write_text('{"step": 1, "a": 2.0}\n{"step": 2, "a": "NaN"}\n{"step": 3, "a"')
  Record("t", {}, "running").write(tmp_path)
  result.read(tmp_path)
  assert result.series[0] == (1, 2.0) and math.isnan(result.series[1][1])
  assert result.record.status == "running"
  path.write_text(json.dumps({"step": 4, "a": 1}) + "\n")
  result.read(tmp_path)
  assert result.series == [(4, 1.0)] and result.step == 4 and result.last() == 1.0


@pytest.mark.parametrize("goal, values, best", [
  ("min", [3.0, math.nan, 1.0, -math.inf, 2.0], 1.0),
  ("max", [3.0, math.nan, 1.0, math.inf, 2.0], 3.0), ("min", [math.nan], math.nan)])
def test_the_best_value_is_finite(goal, values, best):
  result = TrialResult(Record("t", {}), SweepFile("x.py", "a", goal),
                       series=list(enumerate(values)))
  assert result.best() == pytest.approx(best, nan_ok=True)


def test_the_best_come_first_and_earlier_files_last(ranked):
  assert [result.record.id for result in ranked] == [
    "t1", "t2", "t3", "t4", "t6", "t5", "t0", "t7", "old"]
  assert ranked[0].best() == pytest.approx(1.0)
  assert ranked[0].last() == 2.0 and ranked[0].step == 20


def test_settings_are_the_mean_and_spread_over_seeds(ranked):
  found = {(s.bindings["a.lr"], s.bindings["net"]): s for s in results.by_setting(ranked, "min")}
  assert len(found) == 4
  best = found[0.3, "<small>"]
  assert [result.record.bindings["train.seed"] for result in best.results] == [1, 2]
  assert best.mean() == pytest.approx((1.31 + 1.32) / 2)
  assert best.spread() == pytest.approx(0.01 / math.sqrt(2))
  assert math.isnan(found[0.1, "<small>"].spread())  # One seed of it failed.
  assert results.by_setting(ranked, "max")[0].bindings["a.lr"] == 0.3
  # Where a seed failed or has no finite value, the others are no better than settings that hold.
  assert [[len(setting.values()) for setting in results.by_setting(ranked, goal)]
          for goal in ("min", "max")] == [[2, 2, 1, 1]] * 2


def test_csv_has_a_row_for_each_trial(ranked, tmp_path):
  results.write_csv(tmp_path, ranked, "eval/loss")
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


def test_the_page_shows_all_and_needs_nothing_else(ranked, tmp_path, page_file):
  results.write_page(tmp_path, ranked, page_file, 12)
  text = (tmp_path / "sweep.html").read_text()
  assert not re.search(r"(src|href)=.(?!#)|url\((?!#)|@import|<script src", text)
  assert "lowest eval/loss is best" in text and "8m 08s in all" in text
  assert "7 of 12 done, 1 failed" in text and "error: &lt;it&gt; broke" in text
  assert "mean and spread over the seeds" in text
  ranks = [text.index(f'<tr id="{result.record.id}"') for result in ranked]
  assert ranks == sorted(ranks)
  for name in ("best eval/loss", "last", "lr", "net", "seed", "step", "time"):
    assert text.count(f'<td data-name="{name}">') == len(ranked)  # A phone shows the name there.
  panels = text[text.index("One curve per trial"):]
  assert panels.count("<figure") == 4 and panels.count("seed 1</span>") == 4


def test_a_sweep_that_has_not_begun_has_a_page(tmp_path, page_file):
  results.write_page(tmp_path, [], page_file, 4)
  assert "0 of 4 done" in (tmp_path / "sweep.html").read_text()


def test_a_trial_links_to_its_report_if_there_is_one(ranked, tmp_path, page_file, without_curves):
  path = f"trials/{ranked[1].record.id}/report.html"
  (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
  (tmp_path / path).touch()
  results.write_page(tmp_path, ranked, page_file, 12)
  text = (tmp_path / "sweep.html").read_text()
  assert re.findall(r'<th>(\d) <a href="([^"]+)">report</a>', text) == [("2", path)]


def test_each_end_and_the_state_are_a_line(ranked):
  current = [result for result in ranked if result.is_current]
  assert results.ended(current[0]) == f"done    {current[0].record.id}  eval/loss 1  1m 01s"
  failed = next(result for result in ranked if result.record.id == "t0")
  assert results.ended(failed) == "failed  t0  1m 01s  error: <it> broke"
  assert results.state(current, 8) == "7 of 8 done, 1 failed; the best: t1  eval/loss 1"
  assert results.state([failed], 8) == "0 of 8 done, 1 failed"
