"""What a sweep shows: the table, `sweep.csv`, `sweep.html`, TensorBoard's HParams plugin."""

import csv
import io
import math
import re

import pytest
from rich.console import Console

from replicator.sweeps import results, trials
from replicator.sweeps.sweep_file import SweepFile
from replicator.sweeps.trials import Metrics, Record
from replicator.sweeps.views import hparams, page
from replicator.sweeps.views.table import Table

FILE = SweepFile("x.py", "eval/loss", grid={"a.lr": [0.1, 0.3], "net": ["<small>", "big"]},
                 seeds=[1, 2])


@pytest.fixture
def rows(tmp_path):
  """Four settings of two seeds; one trial failed, one has no finite value, one is of old."""
  records = []
  for lr in (0.1, 0.3):
    for net in ("<small>", "big"):
      for seed in (1, 2):
        record = Record(f"t{len(records)}", {"a.lr": lr, "net": net, "train.seed": seed}, "done",
                        0, 61.0, order=len(records))
        folder = tmp_path / "trials" / record.id
        folder.mkdir(parents=True)
        values = [10 * lr, 1.0 + lr + 0.01 * seed, 2.0]
        (folder / "metrics.jsonl").write_text("".join(
          f'{{"step": {10 * step}, "eval/loss": {value}}}\n' for step, value in enumerate(values)))
        records.append(record)
  records[0].status, records[0].message = "failed", "error: <it> broke"
  (tmp_path / "trials" / "t0" / "metrics.jsonl").unlink()
  (tmp_path / "trials" / "t7" / "metrics.jsonl").write_text('{"step": 1, "eval/loss": "NaN"}\n')
  records.append(Record("old", {"a.lr": 9.0}, "done", 0, 1.0, order=9))
  for record in records:
    (tmp_path / "trials" / record.id).mkdir(exist_ok=True)
    record.write(tmp_path / "trials" / record.id)
  return results.rows(FILE, records, {record.id for record in records[:-1]},
                      lambda name: Metrics(tmp_path / "trials" / name))


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


def test_csv_has_a_row_for_each_trial(rows, tmp_path):
  results.write_csv(tmp_path, rows, FILE)
  with (tmp_path / "sweep.csv").open() as file:
    table = list(csv.DictReader(file))
  assert len(table) == 9
  assert table[0]["id"] == rows[0].record.id
  failed = next(row for row in table if row["id"] == "t0")
  assert (failed["status"], failed["best eval/loss"], failed["message"], failed["seconds"]) == (
    "failed", "", "error: <it> broke", "61.0")
  assert table[-1]["in_sweep_file"] == "no" and table[-1]["net"] == ""


def test_the_page_shows_all_and_needs_nothing_else(rows, tmp_path):
  page.write(tmp_path, rows, FILE, 12)
  text = (tmp_path / "sweep.html").read_text()
  assert not re.search(r"(src|href)=.(?!#)|url\((?!#)|@import|<script", text)
  assert "<small>" not in re.sub(r"<small>Sweep of", "", text)  # What users write is escaped.
  assert "7 of 12 done, 1 failed" in text and "error: &lt;it&gt; broke" in text
  assert "mean and spread over the seeds" in text
  ranks = [text.index(f'<tr title="{row.record.id}">') for row in rows]
  assert ranks == sorted(ranks)
  (parallel,) = re.findall(r'<svg viewBox="0 0 1000.*?</svg>', text, re.DOTALL)
  assert len(re.findall("<path d=\"M[^v]+?\" fill=\"none\"", parallel)) == 6
  for title in ("lr", "net", "seed", "best eval/loss"):
    assert f">{title}" in parallel
  panels = text[text.index("A curve per trial"):]
  assert panels.count("<figure") == 4 and panels.count("seed 1</span>") == 4


def test_a_sweep_that_has_not_begun_has_a_page(tmp_path):
  page.write(tmp_path, [], FILE, 4)
  assert "0 of 4 done" in (tmp_path / "sweep.html").read_text()


def test_tensorboard_shows_the_same(rows, tmp_path):
  import tensorflow as tf
  from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
  from tensorboard.context import RequestContext
  from tensorboard.plugins import base_plugin
  from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups
  for row in rows[:-1]:
    folder = tmp_path / "trials" / row.record.id
    hparams.write_trial(folder, row.record)
    with tf.summary.create_file_writer(str(folder)).as_default():  # As a run does.
      for step, value in row.series:
        tf.summary.scalar(FILE.metric, value, step)
  hparams.write_sweep(tmp_path, FILE, rows)
  multiplexer = plugin_event_multiplexer.EventMultiplexer(
    tensor_size_guidance={"scalars": 0, "hparams": 0})
  multiplexer.AddRunsFromDirectory(str(tmp_path))
  multiplexer.Reload()
  provider = data_provider.MultiplexerDataProvider(multiplexer, str(tmp_path))
  context = backend_context.Context(base_plugin.TBContext(data_provider=provider))
  request = api_pb2.ListSessionGroupsRequest(
    start_index=0, slice_size=100, allowed_statuses=[
      api_pb2.STATUS_SUCCESS, api_pb2.STATUS_FAILURE, api_pb2.STATUS_RUNNING])
  experiment = context.experiment_from_metadata(
    RequestContext(), "", False, context.hparams_metadata(RequestContext(), ""), [])
  assert {info.name for info in experiment.hparam_infos} == {"a.lr", "net", "train.seed"}
  request.col_params.add().metric.tag = FILE.metric
  groups = list_session_groups.Handler(RequestContext(), context, "", request).run().session_groups
  shown = {group.name: group for group in groups}
  assert set(shown) == {row.record.id for row in rows[:-1]}
  for row in rows[:-1]:
    group = shown[row.record.id]
    assert group.hparams["a.lr"].number_value == row.record.bindings["a.lr"]
    assert group.hparams["net"].string_value == row.record.bindings["net"]
    assert group.sessions[0].status == (api_pb2.STATUS_FAILURE if row.record.status == "failed"
                                        else api_pb2.STATUS_SUCCESS)
    if math.isfinite(row.last):
      assert group.metric_values[0].value == pytest.approx(row.last)


@pytest.mark.parametrize("height, shown", [(50, 8), (10, 4)])
def test_the_live_table_fits_the_terminal(rows, height, shown):
  rows[5].record.status = trials.RUNNING
  console = Console(file=io.StringIO(), force_terminal=True, width=120, height=height,
                    color_system=None)
  with Table(FILE.metric, console) as table:
    table.show(rows, 8)
  last = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "\n", console.file.getvalue()).rpartition("lr ")[2]
  lines = [line for line in last.splitlines() if "done" in line or "running" in line
           or "failed" in line]
  assert sum("1m 01s" in line for line in lines) == shown
  assert any("running" in line for line in lines[:-1])
  assert "6 of 8 done, 1 running, 1 failed" in lines[-1]


def test_without_a_terminal_each_end_is_a_line(rows):
  console = Console(file=io.StringIO(), width=40)
  with Table(FILE.metric, console) as table:
    table.show(rows, 8)
    table.ended(rows[0])
    table.ended(next(row for row in rows if row.record.id == "t0"))
  first, second = console.file.getvalue().splitlines()
  assert first == f"done    {rows[0].record.id}  eval/loss 1  1m 01s"
  assert second == "failed  t0  1m 01s  error: <it> broke"
