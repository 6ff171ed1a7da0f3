"""Labels of files: every file has exactly one, or the error says which has none."""

import json

import pytest

from models.vision.labels import from_folders, from_json
from replicator.errors import UsageError

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
    ([["0.png", -1]], "d.json: the label of 0.png is -1; write ..."),
    ([["0.png", [0, 1]]], "d.json: the label of 0.png is [0, 1]; write ..."),
    ([3], 'd.json: write {"labels": [["00000/img00000000.png", 6], ...]}, or null in place of ...'),
])
def test_labels_that_do_not_fit_are_refused(labels, line):
  with pytest.raises(UsageError) as error:
    from_json(content(labels), [f"{i}.png" for i in range(1000)], "d.json")
  assert str(error.value).startswith(line.removesuffix("..."))


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"\xff"])
def test_content_of_another_form_is_refused(text):
  with pytest.raises(UsageError, match=r"^d\.json: write "):
    from_json(text, NAMES, "d.json")
