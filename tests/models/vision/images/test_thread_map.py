"""Functions of one example for those of a batch: the same results, in order, on several threads."""

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


def test_one_example_stays_one():
  filled, total = in_threads(lambda index: (np.full([2], index), index + 1))(np.array(3))
  assert filled.tolist() == [3, 3] and total == 4


def test_several_threads_share_the_examples(monkeypatch):
  monkeypatch.setattr("os.cpu_count", lambda: 2)
  both = threading.Barrier(2, timeout=60)

  def draw(index):
    if index < 2:
      both.wait()  # For the thread that has the other one.
    return index

  np.testing.assert_array_equal(in_threads(draw)(NUMBERS), NUMBERS)


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
