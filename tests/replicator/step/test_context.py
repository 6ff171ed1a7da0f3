"""Code knows which replica and which step it runs in, inside and outside of a step."""

import pytest
import tensorflow as tf

from replicator import Replicator, batch_size, num_replicas, replica_id, step_number
from replicator.step import context


def where() -> tf.Tensor:
  """int64 [3]: replica, replicas, step."""
  return tf.stack([tf.cast(replica_id(), tf.int64), num_replicas(), step_number()])


def test_each_replica_knows_its_number_and_how_many_there_are(synchronous):
  replicas = synchronous.num_replicas
  assert [list(r.numpy()) for r in synchronous.run(where)] == [
      [i, replicas, 0] for i in range(replicas)]


def test_steps_are_counted_over_all_functions(synchronous):
  other = lambda: where() + 0
  seen = [[int(r[2]) for r in synchronous.run(f)] for f in (where, other, where)]
  assert seen == [[step] * synchronous.num_replicas for step in range(3)]


def test_outside_a_step_code_is_replica_0_of_1_at_step_0():
  assert list(where().numpy()) == [0, 1, 0]
  assert list(tf.function(where)().numpy()) == [0, 1, 0]


def test_a_scope_is_outside_of_all_replicas(synchronous):
  with synchronous.scope():
    assert list(where().numpy()) == [0, 1, 0]


def test_an_eager_step_is_a_step(run_eagerly, synchronous):
  run_eagerly()
  synchronous.run(where)
  assert [list(r.numpy()) for r in synchronous.run(where)] == [
      [i, synchronous.num_replicas, 1] for i in range(synchronous.num_replicas)]


def test_a_step_that_raises_is_left():
  def failing():
    raise KeyError("from the step")
  with pytest.raises(KeyError, match="from the step"):
    Replicator("one_device").run(failing)
  assert int(step_number()) == 0


def test_a_replica_knows_its_share_of_the_global_batch(synchronous, monkeypatch):
  monkeypatch.setattr(context.run, "global_batch_size", 12)
  assert batch_size() == 12
  share = 12 // synchronous.num_replicas
  assert synchronous.run(lambda: batch_size()) == [share] * synchronous.num_replicas
