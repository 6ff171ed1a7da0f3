"""The report of a run: what the page says, for complete and for broken workdirs."""

import base64
import html.parser
import json
import math
import re

import numpy as np
import pytest
from PIL import Image

from replicator.errors import UsageError
from replicator.workdir import charts, reader, report
from replicator.workdir.live_report import LiveReport
from tests.replicator.console.test_progress import Clock

CONFIG = "# Parameters for train:\ntrain.steps = 300\nSNGAN.note = '<b>&'\n"
FACTS = {"command": "python -m experiments.sngan --gin_param='train.steps = 300'",
         "started": "2026-02-03T10:11:12+00:00", "git_commit": None, "strategy": "mirrored",
         "versions": {"python": "3.11.9", "tensorflow": "2.21.0"}, "num_replicas": 2,
         "global_batch_size": 64, "precision": "float32", "steps": 300, "experiment": "sngan"}


def write_metrics(workdir, rows):
  workdir.joinpath("metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def workdir(tmp_path):
  """300 steps in 30 s, evaluated every 100 steps, with five pictures."""
  rows = [{"step": 0, "seconds": 0.0, "eval/classifier_frechet_distance": 400.0}]
  for step in range(1, 301):
    row = {"step": step, "seconds": step / 10, "d": 1.0 + math.sin(step), "g": 0.5,
           "data_wait": 0.013}
    found = {"eval/classifier_frechet_distance": 400.0 / step} if step % 100 == 0 else {}
    rows.append(row | found)
  write_metrics(tmp_path, rows)
  tmp_path.joinpath("run.json").write_text(json.dumps(FACTS))
  tmp_path.joinpath("config.gin").write_text(CONFIG)
  tmp_path.joinpath("samples").mkdir()
  for step in (0, 75, 150, 225, 300):
    Image.new("RGB", (8, 8), (step % 256, 0, 0)).save(tmp_path / f"samples/step-{step:08d}.png")
  return tmp_path


class Text(html.parser.HTMLParser):
  """The words of a page, the sources of its pictures, and its tags."""

  def __init__(self, page: str):
    super().__init__()
    self.words, self.images, self.tags = "", [], []
    self._hidden = False
    self.feed(page)

  def handle_starttag(self, tag, attributes):
    self.tags.append(tag)
    self._hidden = tag == "style"
    if tag == "img":
      self.images.append(dict(attributes)["src"])

  def handle_data(self, data):
    self.words += "" if self._hidden else data + " "


def written(workdir) -> Text:
  path = report.write_report(workdir)
  assert path == workdir / "report.html"
  return Text(path.read_text())


def test_the_page_says_what_was_run_and_how_it_went(workdir):
  words = written(workdir).words
  for expected in ("sngan", "finished at step 300", "mirrored", "2 replicas", "float32", "30s",
                   "10 steps per second", "640 examples per second",
                   "1.3% of the time waiting for data",
                   FACTS["command"], "python 3.11.9, tensorflow 2.21.0", FACTS["started"]):
    assert expected in words
  assert "git commit" not in words  # None: unknown.


def test_the_configuration_is_shown_as_it_is(workdir):
  assert "\ntrain.steps = 300\nSNGAN.note = '<b>&'\n" in written(workdir).words


def test_the_table_shows_last_first_lowest_and_highest(workdir):
  words = re.sub(r"\s+", " ", written(workdir).words)
  assert "metric last first lowest highest" in words
  assert "eval/classifier_frechet_distance 1.333 400 1.333 400" in words
  assert "g 0.5 0.5 0.5 0.5" in words
  d = [1.0 + math.sin(step) for step in range(1, 301)]
  assert "d " + " ".join(f"{each:.4g}" for each in (d[-1], d[0], min(d), max(d))) in words


def test_each_metric_has_a_panel_and_evaluations_come_first(workdir):
  page = report.write_report(workdir).read_text()
  assert re.findall(r'<figure class="(\w+)"><figcaption>([\w/]+)', page) == [
    ("evaluation", "eval/classifier_frechet_distance"), ("training", "d"), ("training", "g"),
    ("training", "data_wait")]
  assert page.count("<svg") == 4 + 2  # The legend.


def test_a_spread_is_drawn_around_its_mean(tmp_path):
  names = ("eval/return", "eval/return_min", "eval/return_max", "loss_min")
  write_metrics(tmp_path, [{"step": step, "seconds": step, **{name: float(step + i)
                            for i, name in enumerate(names)}} for step in range(5)])
  page = report.write_report(tmp_path).read_text()
  by_step, by_seconds = page.split("Curves by seconds")
  panels = r'<figure class="\w+"><figcaption>([\w/]+)'
  assert re.findall(panels, by_step) == ["eval/return", "loss_min"]
  assert re.findall(panels, by_seconds) == ["eval/return"]
  assert "Curves by environment steps" not in page
  assert "shaded: min to max" in page and "fill-opacity: 0.15" in page
  assert "eval/return_max" in page  # In the table.


def test_a_spread_is_also_drawn_over_environment_steps(tmp_path):
  write_metrics(tmp_path, [{"step": step, "seconds": step, "eval/environment_steps": 1e6 * step,
                            "eval/return": 1.0, "eval/return_min": 0.0, "eval/return_max": 2.0}
                           for step in range(5)])
  drawn = report.write_report(tmp_path).read_text().split("Curves by environment steps")[1]
  assert ">4M<" in drawn.split("Curves by seconds")[0]


def test_a_run_names_the_axes_of_its_report(tmp_path):
  names = ("eval/frames", "eval/other_steps", "eval/return", "eval/return_min", "eval/return_max")
  rows = [{"step": step, **{name: float(step + i) for i, name in enumerate(names)}}
          for step in range(3)]
  rows[1]["eval/seldom"] = 5.0  # It cannot say where the other points are.
  write_metrics(tmp_path, rows)
  axes = ["eval/seldom", "eval/frames", "eval/gone"]
  (tmp_path / "run.json").write_text(json.dumps({**FACTS, "axes": axes}))
  page = report.write_report(tmp_path).read_text()
  assert re.findall("<h2>Curves by (.*)</h2>", page) == ["step", "frames"]


def test_each_chart_by_step_goes_over_the_whole_run(tmp_path):
  late = {"eval/x": 1.0, "learning_rate/a": 0.1}
  write_metrics(tmp_path, [{"step": 0, "loss": 1.0}, {"step": 50, "loss": 2.0, **late},
                           {"step": 100, "loss": 3.0, **late, "learning_rate/a": 0.2}])
  page = report.write_report(tmp_path).read_text()
  for name, marks in (("eval/x", 2), ("loss", 0), ("learning_rate", 0)):
    (chart,) = re.findall(rf"<figcaption>{name}.*?</figure>", page, re.DOTALL)
    x = [float(place) for place in re.findall(r'cx="([\d.]+)"', chart)]
    assert x[-2:] == pytest.approx([146.4, 251.4], abs=0.1)
    assert len(re.findall(r"<use [^>]*var\(--ink\)", chart)) == marks  # Evaluations have them.


@pytest.mark.parametrize("end", [{"eval/return_min": "NaN"}, {}])
def test_ends_that_are_not_known_everywhere_are_curves_and_no_spread(end, tmp_path):
  names = ("eval/return", "eval/return_min", "eval/return_max")
  rows = [{"step": step, **dict.fromkeys(names, 1.0)} for step in range(4)]
  del rows[2]["eval/return_min"]
  rows[2].update(end)
  write_metrics(tmp_path, rows)
  page = report.write_report(tmp_path).read_text()
  assert re.findall(r"<figcaption>([\w/]+)", page) == list(names) and "shaded" not in page


@pytest.mark.parametrize("seconds, rate", [([0, 1, 2, 102, 103], "10"), ([7, 7, 7, 7, 7], "0")])
def test_the_rate_is_the_usual_one_and_not_the_mean(seconds, rate, workdir):
  write_metrics(workdir, [{"step": 10 * i, "seconds": each} for i, each in enumerate(seconds)])
  facts = {**FACTS, "num_replicas": 1, "argv": ["--eager"], "program": ["-m", "a.b"],
           "resumed": []}
  (workdir / "run.json").write_text(json.dumps(facts))
  words = re.sub(r"\s+", " ", written(workdir).words)
  assert f" {rate} steps per second" in words
  assert f" {64 * int(rate)} examples per second" in words
  assert ("1m 43s training time" if rate == "10" else "7s training time") in words
  assert "1 replica " in words and "global batch size 64" in words
  assert "argv" not in words and "-m, a.b" not in words  # The command says so.
  assert "resumed" not in words  # It never was.


def test_the_page_needs_nothing_else(workdir):
  text = written(workdir)
  assert not {"script", "link", "iframe"} & set(text.tags)
  assert all(source.startswith("data:image/png;base64,") for source in text.images)
  page = (workdir / "report.html").read_text()
  assert not re.search(r"@import|url\((?!#)|src=\"(?!data:)", page)


def test_curves_take_the_colors_of_the_page(workdir):
  page = report.write_report(workdir).read_text()
  assert "var(--ink)" in page and "prefers-color-scheme: dark" in page
  svg = page[page.index("<svg"):page.rindex("</svg>")]
  assert set(re.findall(r"#[0-9a-f]{6}\b", svg)) <= {"#000000"}  # Defaults that draw nothing.


def test_the_first_and_the_last_picture_come_first(workdir):
  def picture(step):
    return (workdir / f"samples/step-{step:08d}.png").read_bytes()

  images = [base64.b64decode(source.split(",")[1]) for source in written(workdir).images]
  assert images == [picture(step) for step in (0, 300, 75, 150, 225)]


def test_a_few_of_many_pictures_are_shown(workdir):
  for step in range(1, 75):
    Image.new("RGB", (8, 8)).save(workdir / f"samples/step-{step:08d}.png")
  text = written(workdir)
  assert len(text.images) == 8
  assert re.findall(r"step (\d+) ", text.words[text.words.index("Samples"):]) == [
    "0", "300", "1", "16", "31", "47", "62", "225"]


def test_the_report_of_an_empty_workdir_says_so(tmp_path):
  words = written(tmp_path).words
  assert tmp_path.name in words and "nothing logged" in words
  for name in ("metrics.jsonl", "run.json", "config.gin", "samples/"):
    assert f"{name} is missing or cannot be read" in words


def test_the_report_of_corrupt_files_says_so(workdir):
  with (workdir / "metrics.jsonl").open("a") as file:
    file.write('{"step": 301, "d": 1.')
  (workdir / "run.json").write_text('{"command": ')
  words = written(workdir).words
  assert "Unreadable lines in metrics.jsonl: 1." in words
  assert "run.json is missing or cannot be read" in words
  assert "finished at step 300" in words


def test_numbers_that_are_not_finite_are_named(workdir):
  write_metrics(workdir, [{"step": 1, "seconds": 1.0, "d": 1.0, "g": math.nan},
                          {"step": 2, "seconds": 2.0, "d": math.inf, "g": math.nan},
                          {"step": 3, "seconds": 3.0, "d": math.nan, "g": math.nan}])
  words = written(workdir).words
  assert "not finite at step 3: d, g" in words
  assert "2 not finite" in words and "3 not finite" in words
  words = re.sub(r"\s+", " ", words)
  assert "d nan 1 1 1 " in words and "g nan nan nan nan " in words  # In the table.


def test_a_run_that_stopped_early_is_not_called_finished(workdir):
  write_metrics(workdir, [{"step": 120, "seconds": 1.0, "d": 1.0}])
  words = written(workdir).words
  assert "step 120 of 300" in words and "finished" not in words


def test_names_cannot_break_the_page(workdir):
  write_metrics(workdir, [{"step": 1, "seconds": 1.0, "<script>": 1.0}])
  names = ("experiment", "strategy", "command", "started", "<script>")
  evil = dict.fromkeys(names, "<script>&")
  (workdir / "run.json").write_text(json.dumps({**FACTS, **evil}))
  text = written(workdir)
  assert "script" not in text.tags and text.words.count("<script>") == 11
  assert "&lt;b&gt;&amp;" in (workdir / "report.html").read_text()  # In the configuration.


@pytest.mark.parametrize("values", [[0.0], [5.0, 5.0], [-1e30, 1e30], [1e-9, 1e-3, 1e9]])
def test_any_finite_values_can_be_drawn(workdir, values):
  write_metrics(workdir, [{"step": i, "seconds": i, "d": v} for i, v in enumerate(values)])
  assert "<svg" in report.write_report(workdir).read_text()


def test_a_folder_that_does_not_exist_is_an_error_of_one_line(tmp_path):
  with pytest.raises(UsageError, match=r"'.*nowhere': no such folder; write the workdir"):
    report.write_report(tmp_path / "nowhere")


def test_smoothing_keeps_lines_and_lessens_noise():
  line = np.linspace(3.0, -5.0, 200)
  np.testing.assert_allclose(charts.smoothed(line), line, atol=1e-12)
  noise = np.random.default_rng(0).normal(size=1000)
  # The mean of 41 independent draws has a standard deviation of 1 / sqrt(41).
  assert np.std(charts.smoothed(noise)) == pytest.approx(1 / math.sqrt(41), rel=0.2)
  short = np.array([1.0, 5.0, 2.0])
  assert charts.smoothed(short) is short
  # Beside a longer curve, with its window.
  assert charts.smoothed(short, 1000) is short
  np.testing.assert_allclose(
      charts.smoothed(noise[:30], 40)[:29], charts.smoothed(noise[:40])[:29])


@pytest.mark.parametrize("length, longest, is_smoothed", [
    (39, None, False), (40, None, True), (40, 1000, False), (41, 1000, True), (3, 40, True)])
def test_a_curve_is_smoothed_if_it_is_long(length, longest, is_smoothed):
  values = np.arange(float(length))
  assert (charts.smoothed(values, longest) is not values) == is_smoothed


def labels_of(values: list[float]) -> list[str]:
  """The labels at both axes of a curve over hundreds of steps."""
  svg = charts.curve(100 + 100 * np.arange(len(values)), np.array(values))
  return re.findall(r"<text[^>]*>([^<]+)</text>", svg)


@pytest.mark.parametrize("values, is_logarithmic", [
    ([31.0] + [1.0] * 30, True), ([30.0] + [1.0] * 30, False), ([31.0] + [0.0] * 30, False),
    ([31.0] + [-1.0] * 30, False), ([31.0] * 30 + [1.0], False),
    ([31.0] * 88 + [1.0] * 12, True), ([31.0] * 92 + [1.0] * 8, False)])  # A tenth is low.
def test_a_curve_that_falls_far_has_a_logarithmic_axis(values, is_logarithmic):
  assert {"0", "2"} & set(labels_of(values)) == {"2" if is_logarithmic else "0"}


def test_a_spread_that_reaches_zero_has_no_logarithmic_axis():
  steps, values = np.arange(100.0, 3200.0, 100.0), np.array([31.0] + [1.0] * 30)
  svg = charts.curve(steps, values, band=((steps, values - 1.0), (steps, values + 1.0)))
  assert ">0</text>" in svg and ">2</text>" not in svg


def test_outliers_of_a_long_curve_do_not_flatten_it():
  values = [0.0, 1.0] * 500
  values[500], values[100] = 1e6, -1e6  # Their moving mean over 41 points is 24,390.
  shown = [float(text) for text in labels_of(values) if re.fullmatch(r"-?\d+", text)]
  assert 1e4 <= max(shown) < 5e4 and -5e4 < min(shown) <= -1e4


def test_values_that_are_not_finite_are_left_out_of_a_curve():
  svg = charts.curve(np.arange(4.0), np.array([1.0, np.nan, 3.0, np.inf]))
  assert re.findall("<title>([^<]+)</title>", svg) == ["0: 1", "2: 3"]


def test_an_axis_of_many_decades_shows_only_these():
  labels = labels_of([1e4, 1e3, 100.0, 10.0, 1.0, 1.0])
  assert "10" in labels and not {"2", "5", "20", "50"} & set(labels)


def test_a_chart_goes_from_the_first_to_the_last_step_of_the_run():
  def places(*span) -> list[float]:
    svg = charts.curve(np.array([500.0, 1000.0]), np.array([1.0, 2.0]), *span)
    return [float(x) for x in re.findall(r'cx="([\d.]+)"', svg)]

  np.testing.assert_allclose(places(), [41.5, 251.4], atol=0.1)
  np.testing.assert_allclose(places((0, 1000)), [146.4, 251.4], atol=0.1)


def test_a_curve_without_points_keeps_its_color():
  line, nothing = (np.arange(2), np.arange(2.0)), (np.zeros(0), np.zeros(0))
  svg = charts.curves({"a": nothing, "b": line})
  assert "var(--curve1)" in svg and "var(--curve0)" not in svg
  assert charts.curves({"a": nothing}) == ""


def test_curves_beyond_the_colors_are_dashed():
  line = np.arange(2), np.arange(2.0)
  eight, nine = (charts.curves(dict.fromkeys(map(str, range(n)), line)) for n in (8, 9))
  assert nine.count("stroke-dasharray") == eight.count("stroke-dasharray") + 1


def test_a_single_point_is_visible():
  def marks(values: list[float], marker: str = "") -> int:
    svg = charts.curve(np.arange(len(values)), np.array(values), marker=marker)
    return len(re.findall(r"<use [^>]*var\(--ink\)", svg))

  assert (marks([1.0]), marks([1.0, 2.0]), marks([1.0, 2.0], "o")) == (1, 0, 2)


def test_numbers_that_are_not_finite_are_read_back(workdir):
  write_metrics(workdir, [{"step": 1, "d": "NaN", "g": "-Infinity", "words": "Infinite"}])
  (row,) = reader.read(workdir).rows
  assert math.isnan(row["d"]) and row["g"] == -math.inf
  assert "not finite at step 1: d, g" in written(workdir).words


# ---- While a run goes on, and how it ended ------------------------------------------------------


class Record:
  """The part of a `WorkdirWriter` that a live report uses."""

  def __init__(self, workdir):
    self.workdir, self.notes = workdir, {}

  def note(self, name, fact):
    self.notes[name] = fact


@pytest.fixture
def live(workdir, monkeypatch):
  """A live report whose drawing takes a second, its clock, and the times of its drawings."""
  clock, drawn = Clock(), []

  def draw(folder):
    assert folder == workdir
    clock.now += 1
    drawn.append(clock.now)

  monkeypatch.setattr(report, "write_report", draw)
  return LiveReport(Record(workdir), pytest.fail, clock), clock, drawn


def test_reports_take_a_hundredth_of_the_time(live):
  live_report, clock, drawn = live
  begun = clock.now
  for _ in range(500):
    live_report.update()
    clock.now += 1
  assert drawn[0] == begun + 1
  assert len(drawn) == 5 and min(np.diff(drawn)) >= 100
  live_report.finish("")  # However soon.
  assert len(drawn) == 6


def test_a_report_that_fails_is_a_line(workdir, monkeypatch):
  monkeypatch.setattr(report, "write_report", lambda folder: 1 / 0)
  said, clock, line = [], Clock(), "warning: the report cannot be written (ZeroDivisionError: "
  live_report = LiveReport(Record(workdir), said.append, clock)
  assert live_report.finish("") == workdir / "report.html"
  assert said == [f"{line}division by zero)"]

  def fail_slowly(folder):
    clock.now += 1
    raise ZeroDivisionError("again")

  monkeypatch.setattr(report, "write_report", fail_slowly)
  for _ in range(50):  # It is not tried again at every call.
    live_report.update()
    clock.now += 1
  assert said[1:] == [f"{line}again)"]


def test_a_workdir_that_takes_no_note_does_not_end_a_run(workdir, monkeypatch):
  said, record = [], Record(workdir)
  monkeypatch.setattr(record, "note", lambda name, fact: 1 / 0, raising=False)
  LiveReport(record, said.append).finish("interrupted")
  assert len(said) == 1


@pytest.mark.parametrize("ended", ["", "interrupted"])
def test_the_last_report_knows_how_the_run_ended(ended, workdir, monkeypatch):
  record, known = Record(workdir), []
  monkeypatch.setattr(report, "write_report", lambda folder: known.append(dict(record.notes)))
  live_report = LiveReport(record, pytest.fail)
  live_report.update()
  live_report.finish(ended)
  assert known == [{}, {"ended": ended}]


@pytest.mark.parametrize("ended, last, words", [
    ("", 300, "finished at step 300"), ("interrupted", 120, "interrupted at step 120 of 300"),
    ("failed: step 121: loss is nan; stop", 120, "failed after step 120"),
    (None, 120, "step 120 of 300")])
def test_the_report_says_how_the_run_ended(ended, last, words, workdir):
  write_metrics(workdir, [{"step": last, "seconds": 1.0, "d": 1.0}])
  (workdir / "run.json").write_text(json.dumps({**FACTS, "ended": ended}))
  shown = written(workdir).words
  assert words in shown
  assert (str(ended) in shown) == (ended is not None)  # Why it failed stands in the table.


# ---- What a user looks for ----------------------------------------------------------------------


def test_the_title_is_the_name_of_the_run(workdir):
  page = report.write_report(workdir).read_text()
  assert f"<title>{workdir.name}: Training report of sngan</title>" in page


def test_what_was_set_comes_before_the_configuration_the_command_line_first(workdir):
  settings = [["train.steps", "300", "a.gin:3"], ["adam.beta_1", "0.5", "--gin_param"]]
  (workdir / "run.json").write_text(json.dumps({**FACTS, "settings": settings}))
  words = written(workdir).words
  assert words.index("adam.beta_1") < words.index("train.steps") < words.index("Parameters for")


def test_the_values_of_a_curve_are_under_the_pointer(workdir):
  svg = charts.curve(np.array([0.0, 500.0, 1000.0]), np.array([1.0, 4.0, 2.5]))
  found = re.findall(r'cx="([\d.]+)" cy="([\d.]+)" r="4"><title>([^<]+)</title>', svg)
  assert [text for *_, text in found] == ["0: 1", "500: 4", "1000: 2.5"]
  # The axes: 259.2 by 136.8 points, with the margins of the drawing.
  x = [float(x) for x, *_ in found]
  np.testing.assert_allclose(x, [41.5, 146.4, 251.4], atol=0.1)
  y = [float(y) for _, y, _ in found]
  assert y[1] < y[2] < y[0] < 136.8 * 0.88
  np.testing.assert_allclose((y[0] - y[2]) / (y[0] - y[1]), 0.5, atol=0.01)
  assert svg.rstrip().endswith("</g></svg>")


def test_the_values_of_a_long_curve_are_a_choice():
  values = np.random.default_rng(0).normal(size=5000)
  svg = charts.curve(np.arange(5000.0), values)
  assert svg.count("<title>") == 60  # They show the values, not their moving mean.
  assert f"<title>4999: {values[-1]:.4g}</title>" in svg


@pytest.mark.parametrize("values", [[9.0, 10.0, 9.0], [9.0, 9.0], [0.0, 12345.0]])
def test_an_axis_of_counts_has_whole_numbers(values):
  svg = charts.curve(np.arange(len(values)), np.array(values))
  labels = re.findall(r"<text[^>]*>([^<]+)</text>", svg)
  assert labels and not any("." in text for text in labels)


def test_learning_rates_are_drawn_if_they_change(tmp_path):
  write_metrics(tmp_path, [{"step": step, "seconds": step, "learning_rate/a": 0.1 * step,
                            "learning_rate/b": 0.1} for step in range(1, 4)])
  page = report.write_report(tmp_path).read_text()
  drawn = page.split("Curves by step")[1]
  assert drawn.count("<figcaption>") == 1 and "<figcaption>learning_rate" in drawn
  assert re.findall(r"</svg>(\w)</span>", drawn) == ["a"]  # The legend.
  assert "learning_rate/b" in page  # In the table.
