"""The pages show what was measured."""

import json
import sys

from benchmarks import pages, record

import pytest
from absl import flags


@pytest.fixture
def recorded(tmp_path, monkeypatch):
  """The record of a benchmark of two tables."""
  monkeypatch.setattr(record, "FOLDER", tmp_path)
  monkeypatch.setattr(record, "_tables", [])
  record.facts.cache_clear()
  monkeypatch.setattr(sys, "argv", ["benchmark", "--rounds=3", "--record=speed"])
  flags.FLAGS(["benchmark", "--record=speed"])
  first = record.Table("examples a second", {"float32": ",.0f", "bfloat16": ",.1f"}, "step")
  first.add("ours", 1234.5, None)
  first.add("peer", "no step", 0.25)
  record.Table("seconds", {"start": ".2f"}).add("ours", 1.234)
  yield json.loads((tmp_path / "speed.json").read_text())
  flags.FLAGS(["benchmark", "--record="])
  record.facts.cache_clear()


def test_a_page_gets_the_table_its_command_and_its_conditions(recorded):
  page = pages.filled("before\n<!-- table: speed 0 -->\nold\n<!-- end -->\nafter")
  assert [line for line in page.splitlines() if line.startswith("|")] == [
      "| step | float32 | bfloat16 |", "| --- | ---: | ---: |", "| ours | 1,234 |  |",
      "| peer | no step | 0.2 |"]
  assert recorded["command"].endswith("--rounds=3")
  for fact in ("command", "date", "commit", "machine"):
    assert recorded[fact] and recorded[fact] in page
  assert page.startswith("before\n") and page.endswith("<!-- end -->\nafter")
  assert pages.filled(page) == page


def test_a_sentence_gets_a_number_by_its_row_and_column(recorded):
  page = "It starts in <!-- number: speed 1 / ours / start -->9<!-- end --> seconds."
  assert pages.filled(page) == page.replace(">9<", ">1.23<")


def test_a_number_that_was_not_measured_is_an_error(recorded):
  for words in ("speed 1 / ours / end", "speed 1 / theirs / start"):
    with pytest.raises(KeyError):
      pages.filled(f"<!-- number: {words} -->9<!-- end -->")


@pytest.mark.parametrize("page", pages.pages(), ids=lambda page: page.name)
def test_each_page_has_the_numbers_of_its_records(page):
  text = page.read_text(encoding="utf-8")
  assert pages.filled(text) == text
