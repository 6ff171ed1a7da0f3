"""Classes of a folder or an archive: its first folders, or those of the list around all images."""

from models.vision.files.layout import from_folders, list_around
from tests.programs.refusals import refusal

import pytest


def test_first_folders_are_classes_in_sorted_order():
  labels, class_names = from_folders(["dog/1.png", "cat/more/2.png", "dog/3.png"])
  assert labels.tolist() == [1, 0, 1] and class_names == ("cat", "dog")
  labels, class_names = from_folders([f"{number}/1.png" for number in (10, 9, 2, 10)])
  assert labels.tolist() == [2, 1, 0, 2] and class_names == ("2", "9", "10")


def test_two_forms_of_a_name_are_one_class():
  labels, class_names = from_folders(["cafe\u0301/1.png", "caf\u00e9/2.png", "tea/3.png"])
  assert (labels.tolist(), class_names) == ([0, 0, 1], ("caf\u00e9", "tea"))


@pytest.mark.parametrize("names, others, found", [
    (["0/a.png", "1/b.png"], ["dataset.json"], "dataset.json"),
    (["x/0/a.png", "x/1/b.png"], ["x/dataset.json", "x/readme"], "x/dataset.json"),
    (["x/0/a.png", "x/1/b.png"], ["dataset.json"], "dataset.json"),
    (["x/0/a.png", "x/0/b.png"], ["dataset.json", "x/dataset.json"], "x/dataset.json"),
    (["x/0/a.png", "x0/b.png"], ["y/dataset.json"], None),
    (["0/a.png"], [], None)])
def test_the_list_is_looked_for_where_the_images_are(names, others, found):
  assert list_around(names, others, "d", True) == found


def test_a_list_of_a_part_of_the_images_is_refused_where_classes_are_needed():
  given = ["train/a.png", "val/b.png"], ["train/dataset.json", "val/dataset.json"], "data"
  assert refusal(list_around, *given, True).startswith(
      "data: train/dataset.json lists only part of the images, and some are outside train; "
      "use the path of train")
  assert list_around(*given, False) is None
