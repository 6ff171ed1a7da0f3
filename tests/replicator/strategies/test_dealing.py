"""Parts of an evaluation, dealt to replicas: their order, their devices, and errors in them."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from replicator import Replicator
from replicator.step import context
from replicator.strategies import dealing
from replicator.strategies.dealing import Dealer


def dealt(name: str, replicas: int | None, function, count: int) -> list:
  with context.entered(tf.constant(7, tf.int64)) as here:
    here.dealer = Dealer(Replicator(name, replicas), on_all_workers=True)
    return list(dealing.deal(function, count))


@pytest.mark.parametrize(("name", "replicas"), [
    ("default", None), ("one_device", None), ("mirrored", 2), ("mirrored", 4),
    ("central_storage", 2)])
@pytest.mark.parametrize("count", [1, 4, 7])
def test_parts_come_back_in_order(name, replicas, count):
  parts = dealt(name, replicas, lambda part: {"square": part ** 2}, count)
  assert parts == [{"square": i ** 2} for i in range(count)]


def test_parts_run_on_the_devices_of_replicas_in_turn():
  def device(part: int) -> str:
    assert context.step_number() == 7
    return tf.constant(part).device[-5:]

  assert dealt("mirrored", 4, device, 9) == [f"CPU:{i % 4}" for i in range(9)]


def test_after_the_first_round_replicas_work_at_the_same_time():
  barrier = threading.Barrier(3, timeout=60)

  def meet(part: int) -> int:
    if part >= 3:
      barrier.wait()  # It passes when three parts are here.
    return part

  assert dealt("mirrored", 3, meet, 6) == list(range(6))


def test_an_error_in_a_part_arrives():
  def broken(part: int) -> int:
    if part == 3:
      raise ValueError("part 3 is broken")
    return part

  with pytest.raises(ValueError, match="part 3 is broken"):
    dealt("mirrored", 2, broken, 6)


def test_outside_of_an_evaluation_parts_run_one_after_the_other():
  with dealing.chief_first():
    assert list(dealing.deal(lambda part: np.full(2, part).sum(), 3)) == [0, 2, 4]


def test_a_part_is_not_computed_before_it_is_asked_for():
  seen = []
  with context.entered(tf.constant(0, tf.int64)) as here:
    here.dealer = Dealer(Replicator("mirrored", 2), on_all_workers=False)
    parts = dealing.deal(seen.append, 6)
    next(parts)
    assert sorted(seen or [0]) == [0, 1]
    parts.close()
