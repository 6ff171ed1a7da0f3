"""A source in two parts: each image is in exactly one part."""

import numpy as np
import pytest

from models.vision.images.image_source import InMemoryImages, hold_out, read
from replicator.errors import UsageError

IMAGES = np.arange(20, dtype=np.uint8)[:, None, None, None] * np.ones([1, 2, 3, 1], np.uint8)
SOURCE = InMemoryImages(IMAGES, np.arange(20) % 2, ("even", "odd"))


def test_every_image_is_in_one_part_and_the_parts_are_always_the_same():
  parts = hold_out(SOURCE, 0.3)
  assert [part.size for part in parts] == [14, 6]
  numbers = []
  for part in parts:
    images, labels = read(part, np.arange(part.size))
    assert part.image_shape == images.shape[1:] == (2, 3, 1)
    assert part.class_names == ("even", "odd") and part.num_classes == 2
    np.testing.assert_array_equal(images[:, 0, 0, 0] % 2, labels)
    numbers.append(images[:, 0, 0, 0].tolist())
  assert sorted(numbers[0] + numbers[1]) == list(range(20))
  assert numbers[1] != sorted(numbers[1])  # A permutation, in case the source is sorted by class.
  again = hold_out(SOURCE, 0.3)[1]
  assert read(again, np.arange(6))[0][:, 0, 0, 0].tolist() == numbers[1]


def test_a_part_tells_its_examples_from_others():
  digested = InMemoryImages(IMAGES, np.zeros(20), ("one",))
  digested.digest = lambda: "of all"
  part, rest = hold_out(digested, 0.3)
  parts = [part.digest(), rest.digest(), hold_out(digested, 0.4)[0].digest()]
  assert len({*parts, "of all"}) == 4 and hold_out(digested, 0.3)[0].digest() == parts[0]
  assert hold_out(SOURCE, 0.3)[0].digest() is None  # Arrays of a program are not known by a name.


@pytest.mark.parametrize("share", [0.0, 0.01, 1.0, -0.2, 1.5])
def test_a_share_that_leaves_a_part_empty_is_refused(share):
  with pytest.raises(UsageError, match=f"held_out = {share}: holds out .* write a share such as"):
    hold_out(SOURCE, share)
