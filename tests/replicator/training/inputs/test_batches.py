"""One pass over a source or a data set, for evaluations."""

import gc
import threading

import replicator
from tests.programs.refusals import refusal

import numpy as np
import pytest
import tensorflow as tf


class Squares:
  """Pairs (x, x squared), and others in training."""

  def __init__(self, size: int):
    self.size = size

  def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"x": index, "square": tf.stack([index, index ** 2], -1)}

  def augmented(self, index: tf.Tensor, seed: tf.Tensor) -> dict[str, tf.Tensor]:
    raise AssertionError("not in an evaluation")


class ManySquares(Squares):
  batched = True

  def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
    assert index.shape.is_fully_defined()
    return super().load(index)


def data_set(size: int) -> tf.data.Dataset:
  return tf.data.Dataset.range(size).map(lambda x: {"x": x, "square": tf.stack([x, x ** 2])})


@pytest.mark.parametrize("make", [Squares, ManySquares, data_set])
@pytest.mark.parametrize("count, size, sizes", [
    (10, 4, [4, 4, 2]), (8, 4, [4, 4]), (3, 4, [3]), (1, 1, [1])])
def test_each_example_comes_once_and_in_order(make, count, size, sizes):
  found = list(replicator.batches(make(count), size))
  assert [len(batch["x"]) for batch in found] == sizes
  assert all(isinstance(x, tf.Tensor) for batch in found for x in batch.values())
  for name, expected in (("x", np.arange(count)),
                         ("square", np.stack([np.arange(count), np.arange(count) ** 2], 1))):
    np.testing.assert_array_equal(np.concatenate([batch[name] for batch in found]), expected)


def test_an_empty_data_set_has_no_batch():
  assert not list(replicator.batches(tf.data.Dataset.range(0), 4))
  assert not list(replicator.batches(tf.data.Dataset.range(5).filter(lambda x: x < 0), 4))


def test_a_pass_that_is_left_closes_its_iterator():
  ended = threading.Event()

  def numbers():
    try:
      yield from range(10 ** 6)
    finally:
      ended.set()

  dataset = tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([], tf.int64))
  gc.disable()  # No iterator is left to it.
  try:
    for batch in replicator.batches(dataset, 4):
      assert batch.numpy().tolist() == [0, 1, 2, 3]
      break
    assert ended.wait(60)
  finally:
    gc.enable()


def test_no_thread_tunes_it_and_a_metric_of_keras_takes_it():
  import keras
  auc = keras.metrics.AUC()
  for batch in replicator.batches(Squares(10), 3):
    auc.update_state(batch["x"] >= 5, tf.cast(batch["x"], tf.float32) / 10)
  assert float(auc.result()) == pytest.approx(1.0, abs=1e-6)


class Wrong(Squares):
  batched = True

  def load(self, index: tf.Tensor) -> tf.Tensor:
    return tf.zeros([7, 2])


class Drawing(Squares):
  def load(self, index: tf.Tensor) -> tf.Tensor:
    return tf.cast(index, tf.float32) + np.random.normal()


@pytest.mark.parametrize("source, size, line", [
    (Squares(10), 0, "batches.size = 0: must be at least 1"),
    (Squares, 4, "batches: the source is the class Squares; pass an instance: Squares()"),
    (np.zeros([4]), 4, "batches: the source is a ndarray; it must be an example source, with size "
     "and load(index), or a tf.data.Dataset of examples"),
    (lambda: data_set(3), 4, "batches: the source is a <lambda>; it must be an example source,"),
    (data_set(3).repeat(), 4, "batches: the data set repeats forever, but is meant to be read once;"
     " remove .repeat()"),
    (Squares(0), 4, "Squares.size = 0: must be the number of examples, a whole number of at least"),
    (Wrong(10), 4, "Wrong.batched = True, but it makes a tensor of shape (7, 2); its first axis"),
    (Drawing(10), 4, "Drawing: load or augmented draws from np.random, only once for all ex")])
def test_what_cannot_be_passed_over(source, size, line):
  assert refusal(replicator.batches, source, size).startswith(line)
