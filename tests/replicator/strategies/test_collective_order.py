"""Workers that make other calls than the others are named. Real processes are in `launch`."""

import numpy as np
import pytest

from replicator import UsageError
from replicator.strategies import collective_order

CALLS = ["all_sum of float32 ()", "all_mean of float32 (3,)", "all_min of int32 ()"]


def check(*workers: list[str]) -> list[str]:
  """The error of each worker."""
  codes, said = np.stack([collective_order.codes(calls) for calls in workers]), []
  for number, calls in enumerate(workers):
    try:
      collective_order.check_workers(number, calls, codes)
      said.append("")
    except UsageError as error:
      said.append(str(error))
  return said


def test_equal_calls_of_any_number_pass():
  assert check([], []) == check(CALLS, CALLS) == check(CALLS * 100, CALLS * 100) == ["", ""]
  assert check(CALLS) == [""]


@pytest.mark.parametrize("other, call, place", [
    ([CALLS[0], CALLS[2], CALLS[1]], f"calls {CALLS[2]}", 2),
    (CALLS[:2], "has ended", 3), ([], "has ended", 1),
    ([*CALLS, CALLS[0]], f"calls {CALLS[0]}", 4)])
def test_every_worker_says_what_it_calls_first_that_the_others_do_not(other, call, place):
  mine = f"calls {CALLS[place - 1]}" if place <= len(CALLS) else "has ended"
  rest = (f" as collective {place} of the step, and other workers do not; all must make the same "
          "calls in the same order")
  assert check(CALLS, CALLS, other) == [
      f"worker 0 {mine}{rest}", f"worker 1 {mine}{rest}", f"worker 2 {call}{rest}"]


def test_a_step_of_many_calls_is_compared_by_its_first_256():
  many = [f"all_sum of float32 ({i},)" for i in range(300)]
  assert check(many, [*many[:256], "another"]) == ["", ""]
  assert "collective 256 of the step" in check(many, [*many[:255], "another"])[0]
