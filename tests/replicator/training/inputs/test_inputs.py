"""The input contract: the global batch of a step, however it is divided and wherever it begins."""

import os
import time

from replicator import InputContext, split
from replicator.errors import UsageError
from replicator.training.inputs.inputs import check
from replicator.training.inputs.pipeline import pipeline
from replicator.training.inputs.shuffle import shuffled
from tests import pages
from tests.programs.refusals import refusal

import keras
import numpy as np
import pytest
import tensorflow as tf


class Numbers:
  """Examples 0, 1, 2, ...; a source as a user writes one."""

  def __init__(self, size: int):
    self.size = size

  def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"number": index, "image": tf.fill([2, 2], tf.cast(index, tf.float32))}


class ManyNumbers(Numbers):
  """The same, many at once."""

  batched = True

  def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
    return tf.vectorized_map(super().load, index)


class SeededNumbers(Numbers):
  """Numbers with a random one, as a source that augments makes it."""

  def augmented(self, index: tf.Tensor, seed: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"number": index, "seed": seed}


class ManySeededNumbers(SeededNumbers):
  batched = True


def read(inputs, steps: int, first_step: int = 0, **context) -> np.ndarray:
  """The numbers in some batches of one pipeline: [steps, batch_size]."""
  dataset = pipeline(inputs, InputContext(**context), first_step)
  return np.stack([b["number"] for b in dataset.take(steps).as_numpy_iterator()])


# ---- Example sources ----------------------------------------------------------------------------


@pytest.mark.parametrize("size, global_batch_size", [(12, 1), (5, 8)])
def test_each_epoch_is_a_permutation_also_where_a_batch_spans_two(size, global_batch_size):
  stream = read(Numbers(size), 24 * size // global_batch_size, global_batch_size=global_batch_size)
  epochs = stream.reshape(24, size)
  np.testing.assert_array_equal(np.sort(epochs, axis=1), [np.arange(size)] * 24)
  assert len({tuple(epoch) for epoch in epochs}) > 20


KEY = tf.constant([3, 5], tf.uint32)  # The seed, and the epoch.
AROUND_POWERS_OF_TWO = [2 ** power + more for power in (7, 8, 15, 16, 17, 18)
                        for more in (-1, 0, 1, 2)]


def order(size: int) -> np.ndarray:
  return shuffled(tf.range(size, dtype=tf.int64), KEY, size).numpy()


def test_an_epoch_of_any_size_has_each_example_once():
  # TensorFlow's own shuffle repeats an example of 2^16 + 1, 2^18 + 1 and 2^20 + 1.
  assert not [size for size in [*range(1, 40), *AROUND_POWERS_OF_TWO]
              if not (np.bincount(order(size), minlength=size) == 1).all()]


def test_the_pipeline_gives_the_last_place_an_example_of_its_own():
  size = 2 ** 16 + 1
  first, last = (read(Numbers(size), 1, step, global_batch_size=1) for step in (0, size - 1))
  assert first != last


def test_the_order_is_what_it_always_was():
  # A run that was started with an earlier version resumes in the middle of its epoch.
  assert read(Numbers(10), 2, 3, global_batch_size=10, seed=7).ravel().tolist() == [
      0, 2, 7, 3, 6, 9, 5, 1, 4, 8, 2, 1, 7, 0, 4, 6, 5, 9, 3, 8]
  for size in (7, 1000, 2 ** 16, 2 ** 16 + 2, 2 ** 17 + 1):
    places = tf.range(size - 5, size, dtype=tf.int64)
    np.testing.assert_array_equal(
        shuffled(places, KEY, size), tf.random.experimental.index_shuffle(places, KEY, size - 1))


@pytest.mark.parametrize("size", [5, 2 ** 16 + 1])  # 2^16 + 1 is shuffled in another way.
def test_a_batched_source_gives_the_same_batches(size):
  context = InputContext(12, 1, num_input_pipelines=2, seed=7)
  for one_by_one, many in [(Numbers, ManyNumbers), (SeededNumbers, ManySeededNumbers)]:
    expected, got = (pipeline(source(size), context, first_step=3) for source in (one_by_one, many))
    assert got.element_spec == expected.element_spec
    for one, other in zip(expected.take(5).as_numpy_iterator(), got.take(5).as_numpy_iterator(),
                          strict=True):
      assert one.keys() == other.keys()
      for name in one:
        np.testing.assert_array_equal(other[name], one[name], err_msg=name)


def test_the_source_of_the_guide_that_draws_twice_has_independent_draws_on_any_pipelines():
  names: dict = {}
  exec(pages.FILES["noisy_pairs.py"].text, names)
  read = lambda *context: next(
      pipeline(names["NoisyPairs"](), InputContext(*context), 0).as_numpy_iterator())
  whole = read(1000)
  place, noise = (1000 * whole["x"] % 1)[:, 0], (whole["y"] - whole["x"] ** 2)[:, 0]
  assert abs(np.corrcoef(place, noise)[0, 1]) < 0.1
  np.testing.assert_allclose([place.mean(), place.std(), noise.std()], [0.5, 12 ** -0.5, 0.1], 0.1)
  parts = [read(1000, worker, 2) for worker in range(2)]
  for name, values in whole.items():
    np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), values)


def test_a_source_that_is_not_batched_but_says_so_is_refused():
  class One(Numbers):
    batched = True

    def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
      return {"number": index, "constant": tf.zeros([2, 2])}

  assert refusal(pipeline, One(10), InputContext(4)).startswith(
      "One.batched = True, but it makes a tensor of shape (2, 2); its first axis must be the numb")


def test_all_of_an_example_stays_together_in_static_shapes():
  spec = pipeline(Numbers(10), InputContext(4)).element_spec
  assert spec == {"number": tf.TensorSpec([4], tf.int64),
                  "image": tf.TensorSpec([4, 2, 2], tf.float32)}
  batch = next(pipeline(Numbers(10), InputContext(4)).as_numpy_iterator())
  np.testing.assert_array_equal(batch["image"][:, 0, 1], batch["number"])


def test_pipelines_and_replicas_divide_the_same_global_batches():
  whole = read(Numbers(50), 10, global_batch_size=8)
  parts = [read(Numbers(50), 10, global_batch_size=8, input_pipeline_id=i,
                num_input_pipelines=2, num_replicas_in_sync=4) for i in range(2)]
  assert all(part.shape == (10, 4) for part in parts)
  np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)


def test_a_late_step_is_reached_at_once():
  # 10^12 examples into the stream: nothing is skipped one by one.
  assert read(Numbers(1000), 1, 10 ** 9, global_batch_size=1000).shape == (1, 1000)


def test_what_is_ready_before_its_step_does_not_grow():
  drawn = []

  class Slow(Numbers):
    def load(self, index):
      def draw(index):
        time.sleep(0.001)
        drawn.append(index)
        return index
      return tf.numpy_function(draw, [index], tf.int64)

  iterator, taken, ahead = iter(pipeline(Slow(1000), InputContext(1))), 0, [0]
  for _ in range(7):
    for _ in range(ahead[-1] + 2):  # More than is ready.
      next(iterator)
      taken += 1
    before = -1
    while len(drawn) > before:  # Until it waits.
      before = len(drawn)
      time.sleep(0.02)
    ahead.append(len(drawn) - taken)
  assert max(ahead) <= 3 + 2 * os.cpu_count()


# ---- Input functions ----------------------------------------------------------------------------


def counting(context: InputContext) -> tf.data.Dataset:
  """This pipeline's part of the numbers 0, 1, 2, ..., taken in turn."""
  numbers = tf.data.Dataset.range(1000).shard(
      context.num_input_pipelines, context.input_pipeline_id)
  return numbers.map(lambda n: {"number": n}).batch(context.batch_size, drop_remainder=True)


def test_batches_of_another_size_are_refused():
  context = InputContext(8, num_input_pipelines=2, num_replicas_in_sync=2)
  numbers = tf.data.Dataset.range(100)
  for dataset, shape in [
      (numbers.batch(8, drop_remainder=True), r"\(8,\)"), (numbers.batch(4), r"\(None,\)"),
      (numbers, r"\(\)"),
      (tf.data.Dataset.from_tensors({"a": tf.zeros([4]), "b": tf.zeros([3, 4])}), r"\(3, 4\)")]:
    with pytest.raises(UsageError, match=f"yields a tensor of shape {shape}; .*batch_size = 4 "):
      pipeline(lambda _, dataset=dataset: dataset, context)
  with pytest.raises(UsageError, match=r"the input function must return a tf.data.Dataset"):
    pipeline(lambda _: [1, 2, 3], context)


# ---- Global batch size --------------------------------------------------------------------------


def test_a_global_batch_that_does_not_divide():
  for inputs in (Numbers(100), counting):
    for size, replicas, remedy in [(10, 4, "8 or 12"), (3, 4, "4 or 8"), (-4, 2, "2 or 4")]:
      context = InputContext(size, num_replicas_in_sync=replicas)
      assert refusal(pipeline, inputs, context) == (
          f"train.global_batch_size = {size}: does not divide evenly among the {replicas} "
          f"replicas; use {remedy}")


def test_per_replica_batch_size():
  context = InputContext(64, num_input_pipelines=2, num_replicas_in_sync=8)
  assert context.get_per_replica_batch_size(64) == 8
  assert context.batch_size == 32


# ---- split() ------------------------------------------------------------------------------------


def test_split_deals_examples_out_in_turn():
  batch = {"x": tf.range(6), "y": [tf.reshape(tf.range(12), [6, 2])]}
  parts = split(batch, 3)
  assert [part["x"].numpy().tolist() for part in parts] == [[0, 3], [1, 4], [2, 5]]
  assert parts[1]["y"][0].numpy().tolist() == [[2, 3], [8, 9]]
  assert split(batch, 1) == [batch]


def test_the_parts_of_all_replicas_are_those_of_the_global_batch():
  whole = tf.range(24)
  of_replicas = [split(replica, 3) for replica in tf.split(whole, 2)]
  for j, part in enumerate(split(whole, 3)):
    np.testing.assert_array_equal(tf.concat([parts[j] for parts in of_replicas], 0), part)


def test_a_batch_that_does_not_split():
  assert refusal(split, {"x": tf.range(8)}, 3) == (
      "a replica's batch of 8 examples does not divide into 3 equal parts; give the step an "
      "attribute batches = 3, so that it gets a batch of train.global_batch_size for each part")


def test_batches_come_in_order_and_no_thread_tunes_them():
  """TensorFlow's thread often misses that its iterator is closed, and sleeps for up to a minute."""
  for inputs in (Numbers(8), counting):
    options = pipeline(inputs, InputContext(global_batch_size=4)).options()
    assert options.deterministic is True and options.autotune.enabled is False


# ---- What is no input ---------------------------------------------------------------------------


class Drawing(Numbers):
  """Numbers with noise of NumPy."""

  def __init__(self, size: int):
    super().__init__(size)
    self.rng = np.random.default_rng(0)
    self.noise = np.random.normal

  def load(self, index: tf.Tensor) -> tf.Tensor:
    return tf.cast(index, tf.float32) + self.noise()


class ManyDrawing(Drawing):
  batched = True


@pytest.mark.parametrize("source", [Drawing, ManyDrawing])
def test_a_source_that_draws_a_constant_is_refused(source):
  drawing = source(4)
  assert refusal(pipeline, drawing, InputContext(2)).startswith(
      f"{source.__name__}: load or augmented draws from np.random, only once for all examples")
  drawing.noise = drawing.rng.normal
  assert "draws from the generator 'rng', only once" in refusal(pipeline, drawing, InputContext(2))


def test_a_source_that_builds_a_network_at_its_first_example_is_taken():
  source, layer = Drawing(4), keras.layers.Dense(1)
  source.noise = lambda: layer(tf.ones([1, 1]))[0, 0]
  pipeline(source, InputContext(2))


@pytest.mark.parametrize("inputs, message", [
    (Numbers, "train: the inputs are the class Numbers; pass an instance: Numbers()"),
    (np.zeros([4, 2]), "train: the inputs are a ndarray; they must be a tf.data.Dataset of global"),
    ([1, 2], "train: the inputs are a list; they must be a tf.data.Dataset of global batches, a"),
    (lambda a, b: None, "train: the input function <lambda> takes more than an InputContext; "),
    (Numbers(0), "Numbers.size = 0: must be the number of examples, a whole number of at least 1"),
    (Numbers(4.0), "Numbers.size = 4.0: must be the number of examples")])
def test_what_cannot_be_inputs_is_refused(inputs, message):
  assert refusal(check, inputs).startswith(message)


def test_inputs_of_all_kinds_are_taken():
  for inputs in (None, Numbers(3), Numbers(np.array(3)), Numbers(tf.constant(3)), lambda _: None,
                 lambda: None, tf.data.Dataset.range(3)):
    check(inputs)
