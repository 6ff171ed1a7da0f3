"""Functions of one example for those of a batch: the same results, in order."""

import faulthandler
import gc
import sys
import threading

import replicator
from models.vision.images.image_source import drawn_by_numpy, read
from models.vision.images.thread_map import in_threads
from replicator.app import config
from replicator.errors import RunFailed

import numpy as np
import pytest
import tensorflow as tf

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


# ---- The end of a data set ----------------------------------------------------------------------


class Drawn:
  """Images that the threads draw, where Python's collector runs; the `broken` one is an error."""

  size = 1000
  image_shape = (1, 1, 1)
  num_classes, class_names = 2, ("even", "odd")
  batched = True

  def __init__(self, broken: int | None = None):
    self._broken = broken

  def load(self, index):
    return drawn_by_numpy(in_threads(self._draw), [index], self.image_shape)

  def _draw(self, index):
    if index == self._broken:
      raise ValueError("broken")
    gc.collect()
    return np.zeros([1, 1, 1], np.uint8), np.int32(index % 2)


class Diverging(tf.Module):
  """Has a number that is not finite in its third step, also after a rollback."""

  def __init__(self):
    super().__init__()
    self.count = tf.Variable(0)

  def __call__(self, batch):
    return {"loss": tf.where(self.count.assign_add(1) == 3, np.nan, 1.0)}


@pytest.fixture
def collected_in_threads():
  """Python's collector runs nowhere else. A deadlock ends this process."""
  faulthandler.dump_traceback_later(300, exit=True, file=sys.__stderr__)
  gc.collect()
  gc.freeze()
  gc.disable()
  yield
  gc.enable()
  faulthandler.cancel_dump_traceback_later()


@pytest.mark.usefixtures("collected_in_threads")
@pytest.mark.parametrize("times", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_no_thread_waits_for_its_own_image_when_a_run_ends_or_rolls_back(times, tmp_path):
  for number in range(times):
    config.parse([], ["train.steps = 4", "train.global_batch_size = 128", "train.eval_every = 0",
                      "train.checkpoint_every = 2", "Guard.action = 'roll_back'",
                      "Guard.max_rollbacks = 1"])  # 256 images are being made at any time.
    with pytest.raises(RunFailed, match="step 3: loss is nan after 1 rollbacks"):
      replicator.train(Diverging, Drawn(), workdir=str(tmp_path / str(number)))


@pytest.mark.usefixtures("collected_in_threads")
def test_an_image_that_is_broken_leaves_no_iterator_to_the_collector():
  with pytest.raises(tf.errors.OpError, match="broken") as kept:
    read(Drawn(broken=300), np.arange(1000))
  assert kept.tb and not any(isinstance(each, tf.data.Iterator) for each in gc.get_objects())
