"""Labels of files: every file has exactly one, or the error says which has none."""

import json

from models.vision.images.labels import (
  from_csv,
  from_json,
  from_numbers,
  from_values,
  in_array,
)
from tests.programs.refusals import refusal

import numpy as np
import pytest

NAMES = ["00000/a.png", "00000/b.png", "00001/c.png"]


def content(labels):
  return json.dumps({"labels": labels}).encode()


def test_labels_belong_to_names_and_not_to_places():
  labels, class_names = from_json(
      content([["00001/c.png", 3], ["00000/a.png", 0], ["00000/b.png", 1]]), NAMES, "d.json")
  assert labels.tolist() == [0, 1, 2] and labels.dtype == "int32"
  assert class_names == ("0", "1", "3")  # Those that have images.


def test_names_of_classes_are_beside_the_labels():
  listed = [["00001/c.png", 1], ["00000/a.png", 2], ["00000/b.png", 2]]
  text = lambda names: json.dumps({"labels": listed, "classes": names}).encode()
  labels, class_names = from_json(text(["cow", "cat", "dog"]), NAMES, "d.json")
  assert labels.tolist() == [2, 2, 1] and class_names == ("cow", "cat", "dog")
  assert "the label of 00000/a.png is 2; use a class number from 0 on, below 2, a one-hot" in (
      refusal(from_json, text(["cow", "cat"]), NAMES, "d.json"))


@pytest.mark.parametrize("values, labels, class_names", [
    (["dog", "cat", "dog"], [1, 0, 1], ("cat", "dog")),
    (["10", "9", "10"], [1, 0, 1], ("9", "10")),
    ([2.0, 7, 2], [0, 1, 0], ("2", "7")),
    ([[0, 1, 0], [1.0, 0.0, 0.0], [0, 1, 0]], [1, 0, 1], ("0", "1"))])
def test_labels_of_a_list_are_numbers_names_or_one_hot_vectors(values, labels, class_names):
  found = from_json(content(list(zip(NAMES, values, strict=True))), NAMES, "d.json")
  assert (found[0].tolist(), found[1]) == (labels, class_names) and found[0].dtype == "int32"


@pytest.mark.parametrize("values", [
    ["cat", "ape", "cat"], [1, 2, 1], [1.0, 2.0, 1.0], [[0, 1, 0], [0, 0, 1], [0, 1, 0]]])
def test_labels_of_any_kind_are_those_of_the_names_beside_them(values):
  text = {"labels": list(zip(NAMES, values, strict=True)), "classes": ["cow", "cat", "ape"]}
  labels, class_names = from_json(json.dumps(text).encode(), NAMES, "d.json")
  assert labels.tolist() == [1, 2, 1] and class_names == ("cow", "cat", "ape")


@pytest.mark.parametrize("value, classes", [
    ("dog", ["cow", "cat"]), ("cat", ["cat", "cat"]), ([0, 1], ["cow", "cat", "ape"])])
def test_a_label_that_is_none_of_the_names_beside_it_is_refused(value, classes):
  text = json.dumps({"labels": [[name, value] for name in NAMES], "classes": classes})
  assert refusal(from_json, text.encode(), NAMES, "d.json") == (
      f"d.json: the label of 00000/a.png is {json.dumps(value)}; use a class number from 0 on, "
      f"below {len(classes)}, a one-hot vector, or a name of its classes")


def test_null_is_no_classes():
  assert from_json(content(None), NAMES, "d.json") is None


@pytest.mark.parametrize("labels, line", [
    ([[f"{i}.png", 0] for i in range(1000) if i != 7],
     "d.json: has labels for 999 of 1,000 images, but not for 7.png (the list begins with 0.png). "
     "Add it, or remove the image"),
    ([[f"{i}.png", 0] for i in range(1001)],
     "d.json: has a label for 1000.png, but there is no such image"),
    ([["0.png", 1.5]],
     "d.json: the label of 0.png is 1.5; use a class number from 0 on"),
    ([["3.png", 0], ["0.png", 0], ["3.png", 1]],
     "d.json: has more than one label for 3.png; keep one"),
    ([["0.png", 1_000_000]], "d.json: the label of 0.png is 1000000; use a class number ..."),
    ([["0.png", [0.5, 0.5]]], "d.json: the label of 0.png is [0.5, 0.5]; use a class ..."),
    ([["0.png", [0, 0]]], "d.json: the label of 0.png is [0, 0]; use a class number ..."),
    ([["0.png", [[1]]]], "d.json: the label of 0.png is [[1]]; use a class number from 0 ..."),
    ([["0.png", -1.0]], "d.json: the label of 0.png is -1.0; use a class number from 0 ..."),
    ([["0.png", None]], "d.json: the label of 0.png is null; use a class number from 0 ..."),
    ([["0.png", True]], "d.json: the label of 0.png is true; use a class number from 0 ..."),
    ([["0.png", 7], ["1.png", "cat"]],
     'd.json: the label of 1.png is "cat", but that of 0.png is 7; use labels of one kind'),
    ([["0.png", [0, 1]], ["1.png", [0, 1, 0]]],
     "d.json: the label of 1.png is [0, 1, 0], but that of 0.png is [0, 1]; ..."),
    ([3], 'd.json: must be {"labels": [["00000/img00000000.png", 6], ...]}, or have null ...'),
])
def test_labels_that_do_not_fit_are_refused(labels, line):
  said = refusal(from_json, content(labels), [f"{i}.png" for i in range(1000)], "d.json")
  assert said.startswith(line.removesuffix("..."))


@pytest.mark.parametrize("heading", ["", "file,label\n", "\ufefffile,label\r\n"])
def test_classes_of_a_csv_file_are_numbers_or_names(heading):
  text = heading + "00001/c.png,2\n\n00000/a.png, 0\n00000/b.png,10\n"
  labels, class_names = from_csv(text.encode(), NAMES, "d.csv")
  assert labels.tolist() == [0, 2, 1] and labels.dtype == "int32"
  assert class_names == ("0", "2", "10")
  text = heading + '00001/c.png,dog\n00000/a.png,"cat, big"\n00000/b.png,dog\n'
  labels, class_names = from_csv(text.encode(), NAMES, "d.csv")
  assert labels.tolist() == [0, 1, 1] and labels.dtype == "int32"
  assert class_names == ("cat, big", "dog")


ROWS = [f"{i}.png,{i % 3}" for i in range(1000)]


@pytest.mark.parametrize("rows, line", [
    (["file,label", *ROWS[:-1], "999.png,1x"],
     "d.csv:1001: the label of 999.png is '1x', but other labels are numbers; use a number from "
     "0 to 999,999, or names for all classes"),
    ([*ROWS[:-1], "999.png,-1"], "d.csv:1000: the label of 999.png is '-1', but other labels ..."),
    (["0.png,cat", "1.png,NaN"], "d.csv:2: the label of 1.png is missing (NaN); ..."),
    (["0.png"], "d.csv:1: write the name of a file, a comma and its class, such as ..."),
    (["file,width,label", "0.png,32,1"], "d.csv:2: write the name of a file, a comma and its ..."),
    (['0.png,"cat'], "d.csv: is not a CSV file in UTF-8 (unexpected end of data)"),
])
def test_rows_of_a_csv_file_that_do_not_fit_are_refused(rows, line):
  said = refusal(from_csv, "\n".join(rows).encode(), [f"{i}.png" for i in range(1000)], "d.csv")
  assert said.startswith(line.removesuffix("..."))


def test_names_that_are_written_in_another_way_are_the_same():
  names = ["cafe\u0301/a b.png", "x/y.png", "z.png"]  # Decomposed, as a Mac writes them.
  labels, _ = from_csv("caf\u00e9/a b.png,2\nx\\y.png,0\n./z.png,1\n".encode(), names, "d.csv")
  assert labels.tolist() == [2, 0, 1]
  line = refusal(from_csv, b"x/y.png,0\nx\\y.png,1\n", ["x/y.png"], "d.csv")
  assert line == (
      "d.csv: has more than one label for x\\y.png, which is spelled in two ways; keep one")


def test_a_number_far_out_is_a_class_and_not_a_million(caplog):
  rows = b"00000/a.png,999999\n00000/b.png,0\n00001/c.png,7"
  labels, class_names = from_csv(rows, NAMES, "d.csv")
  assert labels.tolist() == [2, 0, 1] and class_names == ("0", "7", "999999")
  assert "d.csv: 999,997 of the labels from 0 to 999,999 have no images, such as 1" in caplog.text


@pytest.mark.parametrize("values, labels, class_names", [
    ([5, 0, 11, 5], [1, 0, 2, 1], ("0", "5", "11")),
    ([2.0, 1.0], [1, 0], ("1", "2")),
    (["dog", "cat", "dog"], [1, 0, 1], ("cat", "dog")),
    (["10", "9"], [1, 0], ("9", "10")),
    ([b"dog", b"cat"], [1, 0], ("cat", "dog")),
    ([True, False, True], [1, 0, 1], ("False", "True"))])
def test_labels_are_numbers_words_or_truths(values, labels, class_names):
  found = from_values(in_array(values), "the column 'a'")
  assert (found[0].tolist(), found[1]) == (labels, class_names) and found[0].dtype == "int32"


@pytest.mark.parametrize("values, line", [
    ([0.5, 1.0], "the column 'a': has '0.5', which is not a class; labels are integers, words"),
    ([0.0, float("nan")], "the column 'a': has 'nan', which is not a class"),
    (["cat", None], "the column 'a': has 'None', which is not a class"),
    ([[1, 2], [3, 4]], "the column 'a': has '[1, 2]', which is not a class"),
    ([{"Smiling": True}], "the column 'a': has \"{'Smiling': True}\", which is not a class"),
    ([], "the column 'a': has 'nothing', which is not a class"),
    ([-1, 3], "the column 'a': has the label -1; labels are class numbers from 0 to 999,999")])
def test_what_is_no_class_is_refused(values, line):
  assert refusal(from_values, in_array(values), "the column 'a'").startswith(line)


def test_given_names_are_all_classes_and_numbers_among_them_are_sorted():
  labels, class_names = from_numbers(np.array([2, 0]), "a", ["cow", "cat", "ape"])
  assert labels.tolist() == [2, 0] and class_names == ("cow", "cat", "ape")
  labels, class_names = from_numbers(np.array([2, 0, 1]), "a", ["0", "10", "2"])
  assert labels.tolist() == [1, 0, 2] and class_names == ("0", "2", "10")
  assert "has the label 3; labels are class numbers from 0 to 2" in refusal(
      from_numbers, np.array([3]), "a", ["cow", "cat", "ape"])
