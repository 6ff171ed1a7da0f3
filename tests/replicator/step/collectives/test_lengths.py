"""Tensors whose lengths differ, or are not known before the step runs, and what travels."""

import replicator
from replicator import Replicator
from replicator.step.hooks import Hook, Transfer
from replicator.strategies.compiled_step import CompiledStep

import numpy as np
import pytest
import tensorflow as tf

LENGTHS = [3, 0, 1, 2]  # How many examples each replica has.
UNEQUAL = np.split(np.random.default_rng(1).normal(size=[sum(LENGTHS), 2]), np.cumsum(LENGTHS)[:-1])


def own_rows(is_known: bool) -> tf.Tensor:
  """The rows of this replica, with a static length or not."""
  if is_known:
    return tf.constant(UNEQUAL[int(tf.get_static_value(replicator.replica_id()))])
  owners = np.repeat(range(len(LENGTHS)), LENGTHS)
  is_own = tf.equal(owners, tf.cast(replicator.replica_id(), "int64"))
  return tf.boolean_mask(np.concatenate(UNEQUAL), is_own)


@pytest.mark.parametrize("is_known, eager, groups", [
    (False, False, [[0, 3], [2, 1]]), (True, True, None)], ids=["unknown in groups", "eager"])
def test_tensors_of_other_lengths_are_joined_with_their_gradients(is_known, eager, groups, request):
  if eager:
    request.getfixturevalue("run_eagerly")()

  def step():
    x = own_rows(is_known)
    with tf.GradientTape() as tape:
      tape.watch(x)
      joined = replicator.all_concat(x, groups=groups)
      places = tf.cast(tf.range(tf.size(joined)), x.dtype)
      number = tf.cast(replicator.replica_id() + 1, x.dtype)
      loss = number * tf.reduce_sum(places * tf.reshape(joined ** 2, [-1]))
    transposed = tf.transpose(x)
    columns, _, signs = replicator.all_concat([transposed, None, transposed > 0], -1, groups)
    assert joined.shape[1:] == [2] and columns.shape[:1] == [2]  # Known where they can be.
    return joined, columns, signs, tape.gradient(loss, x)

  results = Replicator("mirrored", logical_cpus=4).run(step)
  for group in groups or [[0, 1, 2, 3]]:
    expected = np.concatenate([UNEQUAL[r] for r in group])
    # Each replica r adds (r + 1) times the gradient of the same sum.
    gradient = sum(r + 1 for r in group) * 2 * expected * np.arange(expected.size).reshape(-1, 2)
    ends = np.cumsum([0] + [LENGTHS[r] for r in group])
    for place, replica in enumerate(group):
      joined, columns, signs, dx = results[replica]
      np.testing.assert_array_equal(joined, expected)
      np.testing.assert_array_equal(columns, expected.T)
      np.testing.assert_array_equal(signs, expected.T > 0, strict=True)
      np.testing.assert_allclose(dx, gradient[ends[place]:ends[place + 1]], rtol=1e-12)


def test_tensors_of_unknown_shapes_travel_together(one_or_two):
  x = np.arange(4.0)

  def step(own):
    first = tf.boolean_mask(x, x < 3)  # [3], but unknown to the graph, as is the next.
    second = tf.boolean_mask(tf.stack([x, -x], 1), x < 2)
    return (replicator.all_sum([first, second]), replicator.all_mean((first, own)),
            replicator.all_max([first, second]))

  n = one_or_two.num_replicas
  for sums, (mean, _), largest in one_or_two.run(step, np.ones([4])):
    np.testing.assert_array_equal(sums[0], n * x[:3])
    np.testing.assert_array_equal(sums[1], n * np.stack([x, -x], 1)[:2])
    np.testing.assert_array_equal(mean, x[:3])
    np.testing.assert_array_equal(largest[1], np.stack([x, -x], 1)[:2])


class Seen(Hook):
  """Keeps what the second replica transfers."""

  def __init__(self):
    self.transfers: list[Transfer] = []

  def transferred(self, transfer):
    if tf.get_static_value(replicator.replica_id()) == 1:
      self.transfers.append(transfer)


def transfers(step) -> list[Transfer]:
  """The transfers of a step on the last of two replicas."""
  seen = Seen()
  CompiledStep(Replicator("mirrored", logical_cpus=2), step, hooks=[seen])(0)
  return seen.transfers


def test_equal_lengths_make_no_collective_of_their_own():
  assert transfers(lambda: replicator.all_concat(tf.ones([2, 3]))) == [
      Transfer("all_gather", 24)]


def test_leaves_of_one_dtype_travel_together():
  floats = [np.zeros(shape, np.float32) for shape in ([2], [3, 4], [])]
  others = [tf.zeros([3], tf.int32), tf.zeros([2], tf.float64)]
  assert transfers(lambda: replicator.all_sum([*floats, *others])) == [
      Transfer("all_reduce", size) for size in (15 * 4, 16, 12)]


def test_the_transfers_of_gradients_count_too():
  x = tf.zeros([4, 2])
  def step(collective):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = collective(x)
    tape.gradient(y, x)
  assert transfers(lambda: step(replicator.all_mean)) == [Transfer("all_reduce", 32)] * 2
  assert transfers(lambda: step(replicator.all_gather)) == [
      Transfer("all_gather", 32), Transfer("all_to_all", 64)]
  assert transfers(lambda: step(replicator.reduce_scatter)) == [
      Transfer("reduce_scatter", 32), Transfer("all_gather", 16)]
