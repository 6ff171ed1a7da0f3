"""Labels of files: every file has exactly one, or the error says which has none."""

import json

from models.vision.images.labels import from_csv, from_folders, from_json
from tests.programs.refusals import refusal

import pytest

NAMES = ["00000/a.png", "00000/b.png", "00001/c.png"]


def content(labels):
  return json.dumps({"labels": labels}).encode()


def test_labels_belong_to_names_and_not_to_places():
  labels, class_names = from_json(
      content([["00001/c.png", 3], ["00000/a.png", 0], ["00000/b.png", 1]]), NAMES, "d.json")
  assert labels.tolist() == [0, 1, 3] and labels.dtype == "int32"
  assert class_names == ("0", "1", "2", "3")


def test_null_is_no_classes():
  assert from_json(content(None), NAMES, "d.json") is None


def test_first_folders_are_classes_in_sorted_order():
  labels, class_names = from_folders(["dog/1.png", "cat/more/2.png", "dog/3.png"])
  assert labels.tolist() == [1, 0, 1] and class_names == ("cat", "dog")


@pytest.mark.parametrize("labels, line", [
    ([[f"{i}.png", 0] for i in range(1000) if i != 7],
     "d.json: has labels for 999 of 1,000 images; 7.png has none. Add it, or remove the image"),
    ([[f"{i}.png", 0] for i in range(1001)],
     "d.json: has a label for 1000.png, and there is no such image"),
    ([["0.png", 1.5]],
     "d.json: the label of 0.png is 1.5; write the number of its class, from 0 on"),
    ([["3.png", 0], ["0.png", 0], ["3.png", 1]],
     "d.json: has more than one label for 3.png; leave one"),
    ([["0.png", 1_000_000]], "d.json: the label of 0.png is 1000000; write the number of its ..."),
    ([["0.png", "cat"]], 'd.json: the label of 0.png is "cat"; write the number of its class, ...'),
    ([3], 'd.json: write {"labels": [["00000/img00000000.png", 6], ...]}, or null in place of ...'),
])
def test_labels_that_do_not_fit_are_refused(labels, line):
  said = refusal(from_json, content(labels), [f"{i}.png" for i in range(1000)], "d.json")
  assert said.startswith(line.removesuffix("..."))


@pytest.mark.parametrize("heading", ["", "file,label\n", "\ufefffile,label\r\n"])
def test_classes_of_a_csv_file_are_numbers_or_names(heading):
  text = heading + "00001/c.png,2\n\n00000/a.png, 0\n00000/b.png,10\n"
  labels, class_names = from_csv(text.encode(), NAMES, "d.csv")
  assert labels.tolist() == [0, 10, 2] and labels.dtype == "int32"
  assert class_names == tuple(map(str, range(11)))
  text = heading + '00001/c.png,dog\n00000/a.png,"cat, big"\n00000/b.png,dog\n'
  labels, class_names = from_csv(text.encode(), NAMES, "d.csv")
  assert labels.tolist() == [0, 1, 1] and labels.dtype == "int32"
  assert class_names == ("cat, big", "dog")


ROWS = [f"{i}.png,{i % 3}" for i in range(1000)]


@pytest.mark.parametrize("rows, line", [
    (["file,label", *ROWS[:-1], "999.png,1x"],
     "d.csv:1001: the label of 999.png is '1x', and other labels are numbers; write a number from "
     "0 to 999,999, or names for all classes"),
    ([*ROWS[:-1], "999.png,-1"], "d.csv:1000: the label of 999.png is '-1', and other labels ..."),
    (["0.png"], "d.csv:1: write the name of a file, a comma and its class, such as ..."),
    (["file,width,label", "0.png,32,1"], "d.csv:2: write the name of a file, a comma and its ..."),
    (['0.png,"cat'], "d.csv: is not a CSV file in UTF-8 (unexpected end of data)"),
])
def test_rows_of_a_csv_file_that_do_not_fit_are_refused(rows, line):
  said = refusal(from_csv, "\n".join(rows).encode(), [f"{i}.png" for i in range(1000)], "d.csv")
  assert said.startswith(line.removesuffix("..."))
