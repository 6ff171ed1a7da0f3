"""The report of a run: what the page says, for complete and for broken workdirs."""

import base64
import json
import math
import re
import types

from replicator.console.kernel import Place
from replicator.training.callbacks.report import Report
from replicator.training.workdir import report
from replicator.training.workdir.record import Record
from replicator.training.workdir.sinks import MetricsFile
from tests.replicator.training.workdir.conftest import FACTS, Text, write_metrics

import numpy as np
import pytest
from PIL import Image


def page_of(workdir, rows: list[dict] | None = None, **facts) -> str:
  """The report of a workdir, with other rows and other facts if there are any."""
  if rows is not None:
    write_metrics(workdir, rows)
  if facts:
    (workdir / "run.json").write_text(json.dumps({**FACTS, **facts}))
  path = report.write_report(workdir)
  assert path == workdir / "report.html"
  return path.read_text()


def words_of(page: str) -> str:
  return re.sub(r"\s+", " ", Text(page).words)


def test_the_page_says_what_was_run_and_how_it_went(page):
  words = Text(page).words
  for expected in ("sngan", "finished at step 300", "mirrored", "2 replicas", "float32", "30s",
                   "10 steps per second", "640 examples per second", FACTS["command"],
                   "python 3.11.9, tensorflow 2.21.0", FACTS["started"],
                   "\ntrain.steps = 300\nSNGAN.note = '<b>&'\n"):
    assert expected in words
  assert "git commit" not in words  # None: unknown.
  assert re.search("<title>finished.*: Training report of sngan</title>", page)


def test_the_table_shows_last_first_lowest_and_highest(page):
  words = words_of(page)
  assert "metric last first lowest highest" in words
  assert "eval/classifier_frechet_distance 1.333 400 1.333 400" in words
  d = [1.0 + math.sin(step) for step in range(1, 301)]
  assert "d " + " ".join(f"{each:.4g}" for each in (d[-1], d[0], min(d), max(d))) in words


def test_each_metric_has_a_panel_and_evaluations_come_first(page):
  assert re.findall(r'<figure class="(\w+)"><figcaption>([\w/]+)', page) == [
    ("evaluation", "eval/classifier_frechet_distance"), ("training", "d"), ("training", "g")]
  assert page.count("<svg") == 3 + 2  # The legend.


def test_the_page_needs_nothing_else_and_curves_take_its_colors(page):
  text = Text(page)
  assert not {"link", "iframe"} & set(text.tags)
  assert set(re.findall("<script[^>]*>", page)) == {
      "<script>", '<script type="application/json">'}
  assert all(source.startswith("data:image/png;base64,") for source in text.images)
  assert not re.search(r"@import|url\((?!#)|src=\"(?!data:)", page)
  assert "var(--ink)" in page and "prefers-color-scheme: dark" in page
  svg = page[page.index("<svg"):page.rindex("</svg>")]
  assert set(re.findall(r"#[0-9a-f]{6}\b", svg)) <= {"#000000"}  # Defaults that draw nothing.


def test_a_spread_is_drawn_around_its_mean_over_all_axes(tmp_path):
  names = ("eval/return", "eval/return_min", "eval/return_max", "loss", "loss_min", "loss_max")
  rows = [{"step": step, "seconds": step, "eval/environment_steps": 1e6 * step,
           **{name: float(step + i) for i, name in enumerate(names)}} for step in range(5)]
  del rows[2]["loss_max"]  # No spread.
  rows[1]["eval/seldom"] = 5.0  # It cannot say where the other points are.
  axes = ["eval/seldom", "eval/environment_steps", "eval/gone"]
  page = page_of(tmp_path, rows, axes=axes)
  assert re.findall("<h2>Curves by (.*)</h2>", page) == ["step", "environment steps", "seconds"]
  by_step, by_frames, by_seconds = re.split("Curves by (?!step)[a-z ]+", page)
  panels = r'<figure class="\w+"><figcaption>([\w/]+)'
  assert re.findall(panels, by_step) == [
      "eval/environment_steps", "eval/return", "eval/seldom", "loss", "loss_min", "loss_max"]
  assert re.findall(panels, by_frames) == re.findall(panels, by_seconds) == ["eval/return"]
  assert ">4M<" in by_frames and "shaded: min to max" in page and "fill-opacity: 0.15" in page
  assert "eval/return_max" in page  # In the table.


@pytest.mark.parametrize("seconds, rate", [([0, 1, 2, 102, 103], "10"), ([7, 7, 7, 7, 7], "0")])
def test_the_rate_is_the_usual_one_and_not_the_mean(seconds, rate, workdir):
  words = words_of(page_of(
      workdir, [{"step": 10 * i, "seconds": each} for i, each in enumerate(seconds)],
      num_replicas=1, argv=["--eager"], program=["-m", "a.b"], resumed=[]))
  assert f" {rate} steps per second" in words
  assert f" {64 * int(rate)} examples per second" in words
  assert ("1m 43s training time" if rate == "10" else "7s training time") in words
  assert "1 replica " in words and "global batch size 64" in words
  assert "argv" not in words and "-m, a.b" not in words  # The command says so.
  assert "resumed" not in words  # It never was.


def test_the_last_picture_is_shown_and_a_slider_goes_through_some_from_the_first_on(workdir):
  for step in range(1, 75):
    Image.new("RGB", (8, 8), (0, step, 0)).save(workdir / f"samples/step-{step:08d}.png")
  page = page_of(workdir)
  steps = sorted(int(path.stem[5:]) for path in (workdir / "samples").glob("step-*.png"))
  shown = [steps[round(number * (len(steps) - 1) / 15)] for number in range(16)]
  url = lambda step: "data:image/png;base64," + base64.b64encode(
      (workdir / f"samples/step-{step:08d}.png").read_bytes()).decode()
  assert embedded(page)[-1] == [[f"step {step}", url(step)] for step in shown]
  assert Text(page).images == [url(300)]


def test_charts_can_be_enlarged_and_a_rate_is_not_smoothed(tmp_path):
  random = np.random.default_rng(0)
  rows = [{"step": step, "seconds": step, "loss": random.normal(), "frames": 4.0 * step,
           "learning_rate/d": 0.1 * step % 3} for step in range(1, 101)]
  rows[3]["loss"] = math.nan
  charts = {re.search("[a-z/_]+", each[0])[0]: json.loads(each[1]) for each in re.findall(
      '<figcaption>(.*?)<script type="application/json">(.*?)</script>', page_of(tmp_path, rows),
      re.DOTALL)}
  assert {name: "smooth" in chart["curves"][0] for name, chart in charts.items()} == {
      "loss": True, "learning_rate/d": False, "frames": False}
  (curve,) = charts["frames"]["curves"]
  assert curve["points"][:2] == [[1.0, 4.0], [2.0, 8.0]] and charts["frames"]["integer"]
  assert charts["loss"]["span"] == [1.0, 100.0] and len(charts["loss"]["curves"][0]["points"]) == 99


def embedded(page: str) -> list:
  """What the page has for its program."""
  return [json.loads(text) for text in re.findall(
      '<script type="application/json">(.*?)</script>', page, re.DOTALL)]


def test_the_report_of_an_empty_workdir_says_so(tmp_path):
  words = words_of(page_of(tmp_path))
  assert tmp_path.name in words and "nothing logged" in words
  for name in ("metrics.jsonl", "run.json", "config.gin", "samples/"):
    assert f"{name} is missing or cannot be read" in words


def test_the_report_of_corrupt_files_says_so(workdir):
  with (workdir / "metrics.jsonl").open("a") as file:
    file.write('{"step": 301, "d": 1.')
  (workdir / "run.json").write_text('{"command": ')
  words = words_of(page_of(workdir))
  assert "Unreadable lines in metrics.jsonl: 1." in words
  assert "run.json is missing or cannot be read" in words
  assert "finished at step 300" in words


def test_numbers_that_are_not_finite_are_named(workdir):
  words = words_of(page_of(workdir, [
      {"step": 1, "seconds": 1.0, "d": 1.0, "g": math.nan},
      {"step": 2, "seconds": 2.0, "d": math.inf, "g": math.nan},
      {"step": 3, "seconds": 3.0, "d": math.nan, "g": math.nan}]))
  assert "not finite at step 3: d, g" in words
  assert "2 not finite" in words and "3 not finite" in words
  assert "d nan 1 1 1 " in words and "g nan nan nan nan " in words  # In the table.


def test_the_report_says_why_a_run_failed_and_what_was_set_the_command_line_first(workdir):
  ended = "failed: step 121: loss is nan; stop"
  settings = [["train.steps", "300", "a.gin:3"], ["adam.beta_1", "0.5", "--gin_param"]]
  words = words_of(page_of(workdir, [{"step": 120, "seconds": 1.0, "d": 1.0}], ended=ended,
                           settings=settings))
  assert "failed after step 120" in words and ended in words  # The reason stands in the table.
  assert words.index("adam.beta_1") < words.index("train.steps") < words.index("Parameters for")


def test_the_layers_of_each_network_are_counted(workdir):
  words = words_of(page_of(workdir, networks=[
      ["generator", "dense", "kernel 32x1024, bias 1024", 33792],
      ["generator", "up_block/norm", "mean 64 (not trained)", 0]]))
  assert "generator: 33,792 parameters in 2 layers" in words
  assert "up_block/norm mean 64 (not trained) 0" in words
  assert "networks" not in words  # It is no fact besides.


# ---- Under the cell of a notebook ---------------------------------------------------------------


def test_a_short_report_is_brought_up_to_date_with_the_long_one(notebook, tmp_path):
  Record(tmp_path, {"steps": 3})
  metrics, callback = MetricsFile(tmp_path), Report()
  run = types.SimpleNamespace(workdir=tmp_path, say=lambda line: None)
  for step in (1, 2, 3):
    metrics.scalars(step, {"seconds": 1.0, "d<": 4.0 / step, "loss/g": 0.5, "grad_norm/d": 1.0,
                           "eval/distance": 2.0, "data_wait": 0.1})
    callback.after_steps(run)
  callback.end(run, None)
  (versions,) = notebook
  assert len(versions) == 2  # That at step 2 was too recent.
  text = Text(versions[-1])
  assert "d< 1.333" in text.words and "eval/distance 2" in text.words
  assert "loss/g 0.5" in text.words
  assert "grad_norm" not in text.words and "data_wait" not in text.words
  assert text.tags.count("svg") == 3 and not text.images


def test_it_has_the_newest_picture(notebook, workdir):
  report.show_report(workdir, Place())
  page = Text(notebook[0][0])
  assert len(page.images) == 1 and "step-00000300" in page.words
