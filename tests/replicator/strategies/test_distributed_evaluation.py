"""Parts of an evaluation, dealt to replicas: their order, their devices, and errors in them.

That workers of their own share them is in `tests/programs/every_collective.py`.
"""

import threading
import types

from replicator import Replicator, random
from replicator.step import context
from replicator.strategies import distributed_evaluation
from replicator.strategies.distributed_evaluation import EvaluationShards, sharded
from tests.programs.closeness import nests_close

import numpy as np
import pytest
import tensorflow as tf


def dealt(replicator: Replicator, function, count: int) -> list:
  with context.entered(tf.constant(7, tf.int64)), sharded(
      EvaluationShards(replicator, on_all_workers=True)):
    return list(distributed_evaluation.deal(function, count))


def test_parts_come_back_in_order(synchronous):
  for count in (1, 4, 7):
    parts = dealt(synchronous, lambda part: {"square": part ** 2}, count)
    assert parts == [{"square": i ** 2} for i in range(count)]


def test_parts_run_on_the_devices_of_replicas_in_turn():
  def device(part: int) -> str:
    assert context.step_number() == 7
    return tf.constant(part).device[-5:]

  assert dealt(Replicator("mirrored", 4), device, 9) == [f"CPU:{i % 4}" for i in range(9)]


def test_after_the_first_round_replicas_work_at_the_same_time():
  barrier = threading.Barrier(3, timeout=60)

  def meet(part: int) -> int:
    if part >= 3:
      barrier.wait()  # It passes when three parts are here.
    return part

  assert dealt(Replicator("mirrored", 3), meet, 6) == list(range(6))


def test_an_error_in_a_part_arrives():
  def broken(part: int) -> int:
    if part == 3:
      raise ValueError("part 3 is broken")
    return part

  with pytest.raises(ValueError, match="part 3 is broken"):
    dealt(Replicator("mirrored", 2), broken, 6)


def test_outside_of_an_evaluation_parts_run_one_after_the_other():
  with distributed_evaluation.chief_first():
    assert list(distributed_evaluation.deal(lambda part: np.full(2, part).sum(), 3)) == [0, 2, 4]


def test_a_part_is_not_computed_before_it_is_asked_for():
  seen = []
  with context.entered(tf.constant(0, tf.int64)), sharded(
      EvaluationShards(Replicator("mirrored", 2), on_all_workers=False)):
    parts = distributed_evaluation.deal(seen.append, 6)
    next(parts)
    assert sorted(seen or [0]) == [0, 1]
    parts.close()


def draws(replicas: int | None) -> list[np.ndarray]:
  """What six parts draw: [2, 3] from a stream twice, and as many numbers as each has; two deals."""
  def part(number: int) -> list[np.ndarray]:
    return [random.normal("z", [2, 3]).numpy(), random.normal("z", [2, 3]).numpy(),
            random.uniform("u", [number + 1]).numpy()]

  def evaluation() -> list:
    deals = [distributed_evaluation.deal(part, 6) for _ in range(2)]
    return [array for parts in [*deals, [part(0)]] for arrays in parts for array in arrays]

  if replicas is None:  # Not in an evaluation of `train`.
    with context.entered(tf.constant(7, tf.int64)):
      return evaluation()
  replicator = Replicator("mirrored" if replicas > 1 else "one_device", logical_cpus=replicas)
  with context.entered(tf.constant(7, tf.int64)), sharded(
      EvaluationShards(replicator, on_all_workers=True)):
    return evaluation()


def test_each_part_has_draws_of_its_own_that_are_the_same_on_any_number_of_replicas():
  expected = draws(None)
  drawn = np.concatenate([array.ravel() for array in expected])
  assert len(np.unique(drawn)) == len(drawn) == 2 * (6 * 12 + 21) + 13
  for replicas in (1, 2, 4):
    nests_close(draws(replicas), expected, rtol=0)


@pytest.mark.parametrize("worker, expected", [(0, ["body", "wait"]), (1, ["wait", "body"])])
def test_the_chief_goes_first(worker, expected):
  order = []
  shards = types.SimpleNamespace(worker=worker, wait_for_all=lambda: order.append("wait"))
  with sharded(shards), distributed_evaluation.chief_first():
    order.append("body")
  assert order == expected
