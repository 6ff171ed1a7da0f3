"""The sum tree against NumPy: draws in proportion, and sums after changes."""

from models.rl.replay import sum_tree

import numpy as np
import pytest
import tensorflow as tf


def tree_of(numbers: np.ndarray) -> sum_tree.SumTree:
  tree = sum_tree.SumTree(len(numbers))
  fill(tree, numbers)
  return tree


def fill(tree: sum_tree.SumTree, numbers: np.ndarray) -> None:
  sum_tree.assign(tree.levels, tf.range(len(numbers), dtype=tf.int64),
                  tf.constant(numbers, tf.float32))


@pytest.mark.parametrize("size", [1, 16, 17, 5000])
def test_every_index_is_drawn_in_proportion_to_its_number(size):
  numbers = np.random.default_rng(size).integers(0, 5, size)
  numbers[-1] = 3
  total = numbers.sum()
  drawn, _ = tree_of(numbers).draw(tf.constant((np.arange(total * 10) + 0.5) / (total * 10)))
  np.testing.assert_array_equal(np.bincount(drawn, minlength=size), 10 * numbers)


@pytest.mark.parametrize("xla", [False, True])
def test_an_index_with_the_number_0_is_never_drawn(xla):
  rng = np.random.default_rng(0)
  numbers = 10.0 ** rng.uniform(-30, 30, 300) * rng.integers(0, 2, 300)
  numbers[200:] = 0
  tree = tree_of(numbers)
  draw = tf.function(lambda x: tree.draw(x)[0], autograph=False, jit_compile=xla or None)
  extremes = [0.0, np.nextafter(0, 1), np.nextafter(1, 0), 1 - 2.0 ** -52, 0.5]
  uniform = tf.constant(np.concatenate([extremes, rng.random(1000)]))
  assert (numbers[draw(uniform)] > 0).all()
  for alone in (0, 17, 299):
    numbers[:] = 0
    numbers[alone] = 1e-30
    fill(tree, numbers)
    assert (draw(uniform).numpy() == alone).all()


def test_rounding_of_the_sums_does_not_make_a_0_drawn():
  rng = np.random.default_rng(0)
  tree = sum_tree.SumTree(17)
  for _ in range(60):  # In some of these the sum of the block exceeds its last partial sum.
    numbers = rng.random(17).astype(np.float32) ** 20
    numbers[[0, 16]] = 0
    fill(tree, numbers)
    index, _ = tree.draw(tf.constant([np.nextafter(1, 0)]))
    assert numbers[index.numpy()[0]] > 0


def test_a_draw_returns_its_number_and_0_when_all_are_0():
  index, numbers = tree_of(np.array([0, 2, 0, 7])).draw(tf.constant([0.1, 0.9], tf.float64))
  assert (index.numpy().tolist(), numbers.numpy().tolist()) == ([1, 3], [2, 7])
  assert tree_of(np.zeros(40)).draw(tf.constant([0.1], tf.float64))[1].numpy() == [0]


@pytest.mark.parametrize("xla", [False, True])
def test_after_any_changes_the_sums_are_those_of_the_numbers(xla):
  rng = np.random.default_rng(1)
  tree, numbers = sum_tree.SumTree(1000), np.zeros(1000, np.float32)
  change = tf.function(lambda *args: sum_tree.assign(tree.levels, *args), autograph=False,
                       jit_compile=xla or None)
  for _ in range(50):
    index = rng.integers(0, 1000, 64)
    new = (10.0 ** rng.uniform(-8, 8, 64) * rng.integers(0, 2, 64)).astype(np.float32)
    change(tf.constant(index), tf.constant(new))
    numbers[index] = 0
    np.maximum.at(numbers, index, new)  # If an index occurs twice, the greatest counts.
  sums = numbers.astype(np.float64)
  np.testing.assert_array_equal(sum_tree.numbers_at(tree.levels, tf.range(1000, dtype=tf.int64)),
                                numbers)
  for level in tree.levels[1:]:
    sums = np.pad(sums, (0, -len(sums) % 16)).reshape(-1, 16).sum(1)
    np.testing.assert_allclose(level.numpy().reshape(-1)[:len(sums)], sums, rtol=1e-15)
