"""Classes of data sets: labels in their shares, and what two sets have in common."""

from models.vision.images.classes import Classes, in_order
from replicator.errors import UsageError
from tests.programs.refusals import refusal

import numpy as np
import pytest

PETS = Classes(("bird", "cat", "dog"), (10, 0, 90))


def by_webster(counts, count):
  """Each seat goes to the class with the largest share by seats that it would have on average."""
  seats, labels = np.zeros(len(counts)), []
  for _ in range(count):
    label = int(np.argmax(np.array(counts) / (2 * seats + 1)))
    seats[label] += 1
    labels.append(label)
  return labels


@pytest.mark.parametrize("counts", [
    (90, 10), (10, 0, 90), (1, 2, 4, 8, 1000), (5,), (178, 182, 177)])
def test_labels_are_divided_as_by_webster_from_the_first_on(counts):
  classes = Classes(tuple(map(str, range(len(counts)))), counts)
  labels = classes.in_shares(400)
  assert labels.dtype == np.int32 and labels.tolist() == by_webster(counts, 400)
  for count in (0, 1, 7, 33):
    assert classes.in_shares(count).tolist() == labels[:count].tolist()


def test_labels_of_all_examples_have_the_counts_of_the_classes():
  counts = np.random.default_rng(0).integers(0, 40, 30)
  found = Classes(tuple(map(str, range(30))), tuple(counts.tolist())).in_shares(counts.sum())
  assert np.bincount(found, minlength=30).tolist() == counts.tolist()


def test_equal_classes_take_turns_and_one_without_examples_has_none():
  assert Classes.numbered(3).in_shares(7).tolist() == [0, 1, 2, 0, 1, 2, 0]
  assert PETS.balanced.in_shares(5).tolist() == [0, 2, 0, 2, 0]
  assert Classes().in_shares(3).tolist() == [0, 0, 0] and not Classes()


def test_few_labels_of_many_classes_are_spread_over_all():
  many = Classes.numbered(1000).spread(64)
  assert len(set(many)) == 64 and many.min() < 20 and many.max() > 960
  assert np.bincount(PETS.spread(20)).tolist() == [2, 0, 18]
  assert Classes().spread(2).tolist() == [0, 0]


def test_names_are_sorted_as_numbers_if_all_are():
  assert in_order([str(i) for i in range(11, -1, -1)]) == list(map(str, range(12)))
  assert in_order(["10", "9", "a"]) == ["10", "9", "a"]
  assert in_order(["01", "1", "0"]) == ["0", "01", "1"]


def test_classes_are_found_by_name_and_by_number_where_no_name_is_one():
  assert PETS.labels(["dog", "bird", "1"]) == [2, 0, 1]
  numbers = Classes(("0", "5", "11"), (1, 1, 1))
  assert numbers.labels(["5", "011"]) == [1, 2]
  line = refusal(PETS.labels, ["dgo"])
  assert line == "class 'dgo': the classes are bird, cat, dog. Did you mean 'dog'?"
  assert "class '2': the classes are 0, 5, 11." in refusal(numbers.labels, ["2"])
  assert "class '3': the classes are bird" in refusal(PETS.labels, ["3"])


def test_labels_go_to_other_sets_by_name():
  few = Classes(("dog", "bird"), (3, 1))
  assert few.labels_in(PETS).tolist() == [2, 0]
  assert PETS.labels_in(few).tolist() == [1, -1, 0]
  assert PETS.with_counts_of(few) == Classes(PETS.names, (1, 0, 3))
  assert few.with_counts_of(PETS) == Classes(few.names, (90, 10))  # It has no image of a cat.
  assert few.with_counts_of(Classes(("dog", "cow"), (1, 1))) is None
  assert few.with_counts_of(Classes()) is None
  padded = Classes(("000", "007"), (1, 1))
  assert padded.labels_in(Classes(("7", "0"), (1, 1))).tolist() == [1, 0]
  composed, decomposed = "caf\u00e9", "cafe\u0301"
  assert Classes((decomposed,), (1,)).labels_in(Classes((composed,), (1,))).tolist() == [0]


def test_names_that_are_twice_there_are_told_apart():
  found = Classes.of(np.array([0, 1, 1, 2]), ["crane", "cat", "crane"])
  assert found == Classes(("crane", "cat", "crane (2)"), (1, 2, 1))


def test_classes_of_labels_have_their_numbers():
  assert Classes.of(np.array([2, 0, 2]), PETS.names) == Classes(PETS.names, (1, 0, 2))
  for labels in ([0, 3], [-1, 0]):
    with pytest.raises(UsageError, match="must be from 0 to 2, since there are 3 class names"):
      Classes.of(np.array(labels), PETS.names)
