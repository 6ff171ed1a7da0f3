"""Names, records and metrics of trials."""

import pathlib
import re

from replicator.tools.sweeps import trials
from replicator.tools.sweeps.sweep_file import SweepFile
from replicator.tools.sweeps.trials import Record

import pytest

FILE = SweepFile("experiments.sngan", "loss")


def trial_id(bindings, file=FILE):
  return Record.make(file, bindings, pathlib.Path("sweep")).id


def test_a_name_is_the_same_in_any_order_and_any_process():
  bindings = {"train.seed": 1, "adam.learning_rate": 2e-4}
  # Written down because it must never change: stopped sweeps would start from the beginning.
  assert trial_id(bindings) == "learning_rate=0.0002_seed=1_7f953e1d"
  assert trial_id(dict(reversed(bindings.items()))) == trial_id(bindings)


@pytest.mark.parametrize("bindings, begin", [
  ({"a": 0.12345678}, "a=0.12345678_"), ({"a": 1e-4}, "a=0.0001_"), ({"a": [1, 2]}, "a=1-2_"),
  ({"gin_file": "x/y.gin"}, "gin_file=y_"), ({"scope/a.b": "@adam"}, "b=adam_"),
  ({"gin_file": ["x/y.gin", "z.gin"]}, "gin_file="), ({"a.b": "../../etc/passwd"}, "b="),
  ({"a": "x y\tz\n"}, "a="), ({"a": [1, {"b": None}]}, "a="), ({"a": "ü/é"}, "a="),
  ({f"name_{i}.parameter": "long" * 10 for i in range(20)}, "")])
def test_a_name_shows_the_values_and_is_good_for_a_folder(bindings, begin):
  name = trial_id(bindings)
  assert name.startswith(begin) and not name.startswith((".", "-"))
  assert re.fullmatch(r"[A-Za-z0-9_=.+-]+", name) and len(name) < 120


def test_a_name_changes_with_what_gin_files_and_those_that_they_include_say(tmp_path):
  first, second, third = (str(tmp_path / f"{name}.gin") for name in "abc")
  pathlib.Path(first).write_text("include 'b.gin'\ntrain.steps = 8\n")

  def names(included: str) -> list[str]:
    pathlib.Path(second).write_text(included)
    return [trial_id({"a": 1}, SweepFile("experiments.sngan", "loss", gin_files=[first])),
            trial_id({"gin_file": [first]}, SweepFile("experiments.sngan", "loss"))]

  before = names("net.width = 8\n")
  assert before[0] == "a=1_4caea64f"
  assert names("# As in the paper.\nnet.width =   8  # Channels.\n") == before
  texts = ["net.width = 9", "NET = 8\nnet.width = %NET", "import net\nnet.width = 8", "net.width",
           "include 'a.gin'\ninclude 'a.gin'", f"include '{third}'"]
  others = [before, *map(names, texts)]
  assert len({name for pair in others for name in pair}) == 2 * len(others)
  pathlib.Path(third).write_text("net.width = 10")
  assert set(names(texts[-1])).isdisjoint(others[-1])


def test_a_gin_file_that_changes_during_a_sweep_changes_no_name(tmp_path):
  path = tmp_path / "a.gin"
  file = SweepFile("experiments.sngan", "loss", gin_files=[str(path)])
  names = set()
  for steps in (8, 9):
    path.write_text(f"train.steps = {steps}")
    names.add(trial_id({"a": 1}, file))
  assert len(names) == 1


def test_different_runs_have_different_names():
  file = SweepFile("experiments.sngan", "loss", params=["train.steps = 3"])
  assert len({trial_id({"a": 1}), trial_id({"a": "1"}), trial_id({"a": 1.0}), trial_id({"b": 1}),
              trial_id({"x.a": 1}), trial_id({"a": 1}, file), trial_id({"a": True})}) == 7


def test_the_metric_and_the_number_of_trials_are_no_part_of_a_name():
  assert trial_id({"a": 1}) == trial_id({"a": 1}, SweepFile(
    "experiments.sngan", "other", goal="max", grid={"a": [1, 2]}))


def test_short_names_are_full_where_two_would_be_equal():
  assert trials.short_names(["a.rate", "d/b.rate", "c.size"]) == {
    "a.rate": "a.rate", "d/b.rate": "d.b.rate", "c.size": "size"}


def test_a_record_is_read_back_and_a_torn_one_is_none(tmp_path):
  record = Record("name", {"a": [1, 2.5]}, "failed", 1, 2.5, "it broke", "python x", 3)
  record.write(tmp_path)
  assert trials.read_record(tmp_path) == record
  path = tmp_path / trials.RECORD
  path.write_text(path.read_text()[:20])
  assert trials.read_record(tmp_path) is None
  assert [path.name for path in tmp_path.iterdir()] == [trials.RECORD]
