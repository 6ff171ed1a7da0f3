"""The comparison of workers before they train, and of their calls. Real processes are in `launch`.
"""

from replicator.errors import UsageError
from replicator.internals import tensorflow_internals
from replicator.strategies import agreement

import pytest


@pytest.fixture
def other(monkeypatch):
  """The changes of worker 1 against worker 0, which is this process."""
  changes: dict = {}

  def exchange(name: str, mine: dict, process: int, processes: int) -> list[dict]:
    return [mine, {**mine, **{key: value(mine[key]) for key, value in changes.items()}}]
  monkeypatch.setattr(tensorflow_internals, "meet", lambda name: None)
  monkeypatch.setattr(tensorflow_internals, "exchange", exchange)
  return changes


def test_equal_workers_may_train_and_one_asks_nobody(other, capsys):
  other["time"] = lambda seconds: seconds + 29.0
  agreement.check(0, 2)
  other["config"] = lambda text: 1 / 0
  agreement.check(0, 1)
  assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("key, change, message", [
    ("config", lambda text: text + "\ntrain.steps = 5\n",
     "train.steps is not set on worker 0, but 5 on worker 1"),
    ("versions", lambda versions: {**versions, "keras": "3.1"}, "on worker 0, but 3.1 on worker 1"),
    ("examples", lambda count: count - 1, "the number of examples is 8 on worker 0, but 7 on w")])
def test_a_difference_is_named(other, key, change, message):
  other[key] = change
  with pytest.raises(UsageError) as raised:
    agreement.check(0, 2, 8, lambda: {"lab.gan": "b2", "replicator": "a0"})
  assert message in str(raised.value)
  assert str(raised.value).endswith("with the same configuration, versions, code and data")


CALLS = ["all_sum of float32 ()", "all_mean of float32 (3,)", "all_min of int32 ()"]


@pytest.fixture
def said_by(monkeypatch):
  """Returns the error of each worker, for the calls of each."""
  def said_by(*workers: list[str]) -> list[str]:
    monkeypatch.setattr(tensorflow_internals, "exchange", lambda *_: workers)
    said = []
    for number, calls in enumerate(workers):
      try:
        agreement.check_workers(number, len(workers), calls)
        said.append("")
      except UsageError as error:
        said.append(str(error))
    return said

  return said_by


def test_equal_calls_of_any_number_pass(said_by):
  assert said_by([], []) == said_by(CALLS, CALLS) == said_by(CALLS * 100, CALLS * 100) == ["", ""]
  assert said_by(CALLS) == [""]


@pytest.mark.parametrize("other, call, place", [
    ([CALLS[0], CALLS[2], CALLS[1]], f"calls {CALLS[2]}", 2),
    (CALLS[:2], "has ended", 3), ([], "has ended", 1),
    ([*CALLS, CALLS[0]], f"calls {CALLS[0]}", 4)])
def test_every_worker_says_what_it_calls_first_that_the_others_do_not(said_by, other, call, place):
  mine = f"calls {CALLS[place - 1]}" if place <= len(CALLS) else "has ended"
  rest = (f" as collective {place} of the step, but other workers do not; all must make the same "
          "calls in the same order")
  assert said_by(CALLS, CALLS, other) == [
      f"worker 0 {mine}{rest}", f"worker 1 {mine}{rest}", f"worker 2 {call}{rest}"]


def test_values_that_another_worker_has_not_are_named(monkeypatch):
  of_workers = [{"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "4"}]
  monkeypatch.setattr(tensorflow_internals, "exchange", lambda *_: of_workers)
  assert agreement.differing(0, 2, of_workers[0]) == ["b", "c"]
  assert agreement.differing(0, 1, of_workers[0]) == []


@pytest.mark.parametrize("of_workers, shared", [
    (["a", "b"], False), (["a", "a"], True), (["a", "b", "c", "b"], True)])
def test_two_of_several_workers_may_share_a_value(of_workers, shared, monkeypatch):
  monkeypatch.setattr(tensorflow_internals, "exchange", lambda *_: of_workers)
  assert agreement.is_shared(0, len(of_workers), of_workers[0]) == shared
  assert not agreement.is_shared(0, 1, "a")
