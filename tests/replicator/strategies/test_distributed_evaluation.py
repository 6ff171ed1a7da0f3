"""Parts of an evaluation, dealt to replicas: their order, their devices, and errors in them."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from replicator import Replicator
from replicator.step import context
from replicator.strategies import distributed_evaluation
from replicator.strategies.distributed_evaluation import Dealer


def dealt(replicator: Replicator, function, count: int) -> list:
  with context.entered(tf.constant(7, tf.int64)) as here:
    here.dealer = Dealer(replicator, on_all_workers=True)
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
  with context.entered(tf.constant(0, tf.int64)) as here:
    here.dealer = Dealer(Replicator("mirrored", 2), on_all_workers=False)
    parts = distributed_evaluation.deal(seen.append, 6)
    next(parts)
    assert sorted(seen or [0]) == [0, 1]
    parts.close()


@pytest.fixture
def two_workers(monkeypatch):
  """The dealers of two workers of two replicas each, which are threads and not processes."""
  barrier, board = threading.Barrier(2, timeout=60), {}

  def of_all(dealer: Dealer, results: list) -> list:
    board[dealer.worker] = results
    barrier.wait()
    joined = board[0] + board[1]
    barrier.wait()
    return joined

  monkeypatch.setattr(Dealer, "_of_all", of_all)
  dealers = [Dealer(Replicator("mirrored", 2), on_all_workers=True) for _ in range(2)]
  for worker, dealer in enumerate(dealers):
    dealer.worker, dealer.workers = worker, 2
  return dealers


def on_both(dealers: list[Dealer], evaluate) -> list:
  def evaluated(dealer: Dealer):
    with context.entered(tf.constant(0, tf.int64)) as here:
      here.dealer = dealer
      return evaluate(dealer.worker)

  with ThreadPoolExecutor(2) as pool:
    return list(pool.map(evaluated, dealers))


def test_each_of_two_workers_computes_half_and_has_all(two_workers):
  computed = {0: [], 1: []}

  def evaluate(worker: int) -> list:
    return list(distributed_evaluation.deal(lambda part: computed[worker].append(part) or part, 7))

  assert on_both(two_workers, evaluate) == [list(range(7))] * 2
  assert sorted(computed[0]) == [0, 1, 4, 5]
  assert sorted(computed[1]) == [2, 3, 6, 6]  # Shapes are the same everywhere, to the end.


def test_the_chief_goes_first(two_workers):
  order = []

  def evaluate(worker: int) -> None:
    with distributed_evaluation.chief_first():
      order.append(worker)

  on_both(two_workers, evaluate)
  assert order == [0, 1]
