"""The choice of the checkpoints that are removed."""

import math

import pytest

from replicator.checkpoints.retention import Retention
from replicator.errors import UsageError

LOSSES = {1: math.nan, 2: 3.0, 4: 1.0, 6: math.nan, 8: 1.0}


def kept(keep_last: int = 1, keep_every: int = 0, keep_best: str | None = None,
         best_is: str = "min") -> list[int]:
  """The steps of 1, 2, ..., 10 whose checkpoints stay."""
  steps = list(range(1, 11))
  retention = Retention(keep_last, keep_every, keep_best, best_is)
  removed = retention.obsolete(steps, lambda step: {"loss": LOSSES[step]} if step in LOSSES else {})
  return [step for step in steps if step not in removed]


@pytest.mark.parametrize(("settings", "expected"), [
    ({}, [10]), ({"keep_last": 20}, list(range(1, 11))), ({"keep_every": 5}, [5, 10]),
    ({"keep_best": "loss"}, [4, 10]),  # The earliest of two that are equally good.
    ({"keep_best": "loss", "best_is": "max"}, [2, 10]), ({"keep_best": "unknown"}, [10]),
    ({"keep_last": 2, "keep_every": 5, "keep_best": "loss"}, [4, 5, 9, 10])])
def test_the_last_ones_multiples_and_the_best_one_are_kept(settings, expected):
  assert kept(**settings) == expected


@pytest.mark.parametrize(("settings", "message"), [
    ({"keep_last": 0}, "keep_last = 0: must be at least 1"),
    ({"keep_every": -1}, "keep_every = -1: must be at least 0")])
def test_a_setting_that_cannot_work_is_an_error(settings, message):
  with pytest.raises(UsageError, match=f"^Checkpoints.{message}"):
    kept(**settings)
