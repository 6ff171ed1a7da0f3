"""The comparison of workers before they train."""

import json

import pytest

from replicator.errors import UsageError
from replicator.internals import tensorflow_internals
from replicator.strategies import agreement


@pytest.fixture
def other(monkeypatch):
  """The changes of worker 1 against worker 0, which is this process."""
  changes: dict = {}

  def exchange(name: str, text: str, process: int, processes: int) -> list[str]:
    mine = json.loads(text)
    return [text, json.dumps({**mine, **{key: value(mine[key])
                                         for key, value in changes.items()}})]
  monkeypatch.setattr(tensorflow_internals, "exchange", exchange)
  return changes


def test_equal_workers_may_train_and_one_asks_nobody(other):
  agreement.check(0, 2)
  other["config"] = lambda text: 1 / 0
  agreement.check(0, 1)


@pytest.mark.parametrize("key, change, message", [
    ("config", lambda text: text + "\ntrain.steps = 5\n",
     "train.steps is not set on worker 0, and 5 on worker 1"),
    ("versions", lambda versions: {**versions, "keras": "3.1"},
     "on worker 0, and 3.1 on worker 1")])
def test_a_difference_is_named(other, key, change, message):
  other[key] = change
  with pytest.raises(UsageError) as raised:
    agreement.check(0, 2)
  assert message in str(raised.value)
  assert str(raised.value).endswith("start all processes with the same configuration and versions")


def test_data_of_another_size_is_refused(other):
  other["examples"] = lambda count: count - 1
  with pytest.raises(UsageError, match="the data has 8 examples on worker 0, and 7 on worker 1"):
    agreement.check(0, 2, 8)
