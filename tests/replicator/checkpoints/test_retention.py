"""The choice of the checkpoints that are removed."""

import math

import pytest

from replicator.checkpoints.retention import Retention
from replicator.errors import UsageError

LOSSES = {2: {"loss": 3.0}, 4: {"loss": 1.0}, 6: {"loss": math.nan}, 8: {"loss": 1.0}}


def kept(keep_last: int = 1, keep_every: int = 0, keep_best: str | None = None,
         best_is: str = "min") -> list[int]:
  """The steps of 1, 2, ..., 10 whose checkpoints stay."""
  steps = list(range(1, 11))
  retention = Retention(keep_last, keep_every, keep_best, best_is)
  removed = retention.obsolete(steps, lambda step: LOSSES.get(step, {}))
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


@pytest.mark.parametrize("best_is", ["min", "max"])
def test_a_nan_is_not_the_best_even_if_it_comes_first(best_is):
  values = {1: math.nan, 2: 3.0, 3: 3.0, 4: math.nan}
  retention = Retention(1, 0, "loss", best_is)
  assert retention.obsolete([1, 2, 3, 4], lambda step: {"loss": values[step]}) == [1, 3]


@pytest.mark.parametrize(("metric", "names", "evaluated", "words"), [
    (None, [], True, None), ("loss", ["eval/x"], True, None), ("eval/x", ["loss"], False, None),
    ("loss", ["loss"], False, None), ("eval/x", ["eval/x"], True, None),
    ("loss", ["losses", "d"], False, "Did you mean 'losses'? Write one of: losses, d"),
    ("eval/x", ["eval/mean_error"], True, "logged. Write one of: eval/mean_error"),
    ("eval/x", [], True, "logged. This run has no evaluation")])
def test_the_scalar_must_be_logged_where_its_name_says(metric, names, evaluated, words):
  retention = Retention(1, 0, metric, "min")
  if words is None:
    retention.check_logged(names, evaluated)
  else:
    with pytest.raises(UsageError) as refused:
      retention.check_logged(names, evaluated)
    assert str(refused.value).endswith(words)
