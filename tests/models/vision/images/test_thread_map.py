"""Functions of one example for those of a batch: the same results, in order."""

import threading

import numpy as np
import pytest

from models.vision.images.thread_map import in_threads

NUMBERS = np.arange(40)


def test_results_are_those_of_one_call_for_each_example():
  pair = in_threads(lambda index, seed: (np.full([2, 3], index), np.int32(seed.sum())))
  filled, sums = pair(NUMBERS, np.stack([NUMBERS, 2 * NUMBERS], 1))
  np.testing.assert_array_equal(filled, NUMBERS[:, None, None] * np.ones([2, 3]))
  np.testing.assert_array_equal(sums, 3 * NUMBERS)
  assert sums.dtype == np.int32
  np.testing.assert_array_equal(in_threads(np.square)(NUMBERS), NUMBERS ** 2)


def test_the_error_of_the_first_example_is_raised():
  later_failed = threading.Event()

  def draw(index):
    if index == 5:
      later_failed.wait(60)
    if index >= 5:
      later_failed.set()
      raise ValueError(f"example {index}")
    return index

  for _ in range(10):
    later_failed.clear()
    with pytest.raises(ValueError, match=r"example 5$"):
      in_threads(draw)(NUMBERS)
