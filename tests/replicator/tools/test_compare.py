"""Runs side by side: the tables, the page, and folders that hold no run."""

import base64
import json
import re

from replicator.tools import compare

import pytest
from PIL import Image

FACTS = {"experiment": "sngan", "strategy": "mirrored", "num_replicas": 2, "seed": 0, "steps": 4,
         "git_commit": "0123456789abcdef+", "resumed": [{"step": 2, "before": {}}]}


def write_run(folder, losses, config="train.seed = 0\ntrain.steps = 4\n", **facts):
  (folder / "samples").mkdir(parents=True)
  folder.joinpath("metrics.jsonl").write_text("".join(
      json.dumps({"step": i + 1, "seconds": 10.0 * i, "loss": loss}) + "\n"
      for i, loss in enumerate(losses)))
  folder.joinpath("run.json").write_text(json.dumps({**FACTS, **facts}))
  folder.joinpath("config.gin").write_text(config)
  Image.new("RGB", (8, 8)).save(folder / "samples" / "step-00000004.png")
  return str(folder)


@pytest.fixture
def folders(tmp_path):
  return [write_run(tmp_path / "one", [4.0, 3.0, 1.0, 2.0]),
          write_run(tmp_path / "two", [4.0, 5.0, "NaN"], "# b\ntrain.seed = 7\ntrain.steps = 4\n",
                    strategy="one_device", seed=7, resumed=[])]


def compared(folders, capsys, *flags) -> list[str]:
  assert compare.main([*folders, *flags]) == 0
  return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def page_of(found) -> str:
  return compare.page(found, "last", compare.metrics(found))


def test_the_table_has_a_column_for_each_run(folders, tmp_path, capsys, monkeypatch):
  monkeypatch.setenv("COLUMNS", "120")
  lines = compared(folders, capsys, f"--output={tmp_path / 'c.html'}")
  rows = {cells[0]: cells[1:] for cells in (re.split(r"  +", line) for line in lines if line)}
  assert rows[""] == ["one", "two"]
  assert rows["status"] == ["finished at step 4", "not finite at step 3: loss"]
  assert rows["strategy"] == ["mirrored", "one_device"]
  assert rows["commit"] == ["0123456789+", "0123456789+"]
  assert rows["training time"] == ["30s", "20s"]
  assert rows["resumed"] == ["at step 2"]
  assert rows["loss"] == ["2 (1 to 4)", "nan (4 to 5)"]
  assert rows["train.seed"] == ["0", "7"]
  assert "train.steps" not in rows
  assert lines[-1] == f"wrote {tmp_path / 'c.html'}"


@pytest.mark.parametrize("columns, blocks", [("80", 1), ("59", 2)])
def test_runs_that_do_not_fit_the_terminal_come_below_the_others(
    columns, blocks, folders, tmp_path, capsys, monkeypatch):
  monkeypatch.setenv("COLUMNS", columns)
  lines = compared(folders, capsys, f"--output={tmp_path / 'c.html'}")
  assert sum(line.startswith("strategy") for line in lines) == blocks
  assert max(map(len, lines[:-1])) <= int(columns)
  words = " ".join(lines).split()
  assert {"one", "two", "mirrored", "one_device"} <= set(words)  # Nothing is cut.


def test_runs_of_several_seeds_are_one_column_that_fits_80_characters(
    tmp_path, capsys, monkeypatch):
  monkeypatch.setenv("COLUMNS", "80")
  found = [write_run(tmp_path / f"{name}_seed={seed}", [4.0, 2.0 + seed],
                     f"train.seed = {seed}\nadam.learning_rate = {rate}\n", seed=seed, steps=2)
           for name, rate in (("slow", 0.1), ("fast", 0.3)) for seed in (1, 2, 3)]
  alone = write_run(tmp_path / "alone", [1.0], "adam.learning_rate = 0.5\n")
  lines = compared([*found, alone], capsys, "--seeds", f"--output={tmp_path / 'c.html'}")
  assert max(map(len, lines[:-1])) <= 80
  rows = {cells[0]: cells[1:] for cells in (re.split(r"  +", line) for line in lines if line)}
  assert rows[""] == ["slow, 3 seeds", "fast, 3 seeds", "alone"]
  assert rows["loss"] == ["4 ± 1", "4 ± 1", "1"]  # Of 3, 4 and 5.
  assert rows["seed"] == ["1, 2, 3", "1, 2, 3", "0"]
  assert rows["adam.learning_rate"] == ["0.1", "0.3", "0.5"] and "train.seed" not in rows
  page = (tmp_path / "c.html").read_text()
  (chart,) = re.findall(r'<script type="application/json">(.*?)</script>', page)
  assert [curve["points"] for curve in json.loads(chart)["curves"]] == [
      [[1, 4], [2, 4]], [[1, 4], [2, 4]], [[1, 1]]]


def test_the_spread_of_a_metric_needs_two_values(tmp_path):
  folder = write_run(tmp_path / "one", [3.0])
  with (tmp_path / "one" / "metrics.jsonl").open("a") as file:
    file.write('{"step": 2, "other": 1.0, "eval/x": 5.0}\n{"step": 3, "other": 0.5}\n')
  assert list(compare.metrics(compare.read([folder])).items()) == [
      ("eval/x", ["5"]), ("loss", ["3"]), ("other", ["0.5 (0.5 to 1)"])]


def test_the_page_draws_the_curves_of_all_runs_in_one_chart(folders, tmp_path, capsys):
  compared(folders, capsys, f"--output={tmp_path / 'c.html'}")
  page = (tmp_path / "c.html").read_text()
  (chart,) = re.findall(r"<figcaption>loss.*?</svg>", page, re.DOTALL)
  assert "var(--curve0)" in chart and "var(--curve1)" in chart and "1 not finite" in chart
  assert re.findall(r"</svg>(\w+)</span>", page) == ["one", "two"]  # In the legend.
  assert page.count("data:image/png;base64,") == 2
  assert "<td>train.seed<td>0<td>7" in page and "<title>one and two: " in page


def test_the_last_picture_and_the_place_of_late_points_are_shown(tmp_path):
  folder = write_run(tmp_path / "one", [5.0, 4.0, 3.0, 2.0, 1.0])
  with (tmp_path / "one" / "metrics.jsonl").open("a") as file:
    file.write('{"step": 3, "eval/x": 1.0}\n{"step": 5, "eval/x": 2.0}\n')
  last = tmp_path / "one" / "samples" / "step-00000005.png"
  Image.new("RGB", (9, 9)).save(last)
  page = page_of(compare.read([folder]))
  assert re.findall("base64,([^\"]+)", page) == [base64.b64encode(last.read_bytes()).decode()]
  (chart,) = re.findall(r"<figcaption>eval/x.*?</svg>", page, re.DOTALL)
  x = [float(place) for place in re.findall(r'cx="([\d.]+)"', chart)]
  assert x == pytest.approx([146.4, 251.4], abs=0.1)  # The middle of all steps, and their end.
  assert len(re.findall(r"<use [^>]*var\(--ink\)", chart)) == 2  # Evaluations have marks.


def test_the_home_directory_may_be_written_as_a_tilde(folders, tmp_path, capsys, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path))
  lines = compared(["~/one", folders[1]], capsys, "--output=~/c.html")
  assert lines[-1] == f"wrote {tmp_path / 'c.html'}" and (tmp_path / "c.html").exists()


def test_runs_of_the_same_name_are_labeled_by_their_paths(tmp_path):
  folders = [write_run(tmp_path / parent / "run", [1.0]) for parent in ("a", "b")]
  assert list(compare.read(folders)) == folders


def test_a_configuration_that_cannot_be_read_is_reported(tmp_path):
  found = compare.read([write_run(tmp_path / "a", [1.0], "train.seed = "),
                        write_run(tmp_path / "b", [1.0])])
  assert compare.configuration(found)["config.gin"] == ["cannot be read", ""]


def test_a_run_without_a_configuration_differs_from_none(folders, tmp_path):
  write_run(tmp_path / "failed", [], "", git_commit=None)
  (tmp_path / "failed" / "samples" / "step-00000004.png").unlink()
  found = compare.read([folders[0], str(tmp_path / "failed")])
  assert compare.configuration(found) == {}
  assert compare.facts(found)["training time"] == ["30s", ""]
  assert compare.facts(found)["commit"] == ["0123456789+", ""]
  assert page_of(found).count("data:image/png;base64,") == 1
  assert list(compare.configuration(compare.read([*folders, str(tmp_path / "failed")]))) == [
      "train.seed"]


@pytest.mark.parametrize(("words", "message"), [
    (["{tmp}/nowhere"], "no such folder"), (["{tmp}"], "is not a run"),
    ([], "required: RUN"),
    (["{tmp}/one", "--output={tmp}/no/c.html"], "cannot be written (No such file"),
    (["{tmp}/one", "--output=."], "--output=.: cannot be written (it is not the name of a file)"),
])
def test_bad_input_is_status_2_and_one_line(words, message, folders, tmp_path, capsys):
  assert compare.main([word.format(tmp=tmp_path) for word in words]) == 2
  output = capsys.readouterr()
  assert output.out == "" and output.err.count("\n") == 1 and message in output.err
