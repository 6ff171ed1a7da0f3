"""Code knows which replica and which step it runs in, inside and outside of a step."""

from replicator import Replicator, num_replicas, replica_id, step_number

import pytest
import tensorflow as tf


def where() -> tf.Tensor:
  """int64 [3]: replica, replicas, step."""
  return tf.stack([tf.cast(replica_id(), tf.int64), num_replicas(), step_number()])


def test_each_replica_knows_its_number_how_many_there_are_and_the_step(synchronous):
  replicas = synchronous.num_replicas
  other = lambda: where() + 0
  for step, function in enumerate((where, other, where)):  # Counted over all functions.
    assert [list(r.numpy()) for r in synchronous.run(function)] == [
        [i, replicas, step] for i in range(replicas)]


def test_outside_a_step_and_in_a_scope_code_is_replica_0_of_1_at_step_0(one_or_two):
  assert list(where().numpy()) == list(tf.function(where)().numpy()) == [0, 1, 0]
  with one_or_two.scope():
    assert list(where().numpy()) == [0, 1, 0]


def test_a_step_that_raises_is_left():
  def failing():
    raise KeyError("from the step")
  with pytest.raises(KeyError, match="from the step"):
    Replicator("one_device").run(failing)
  assert int(step_number()) == 0
