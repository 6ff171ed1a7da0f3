"""The log of a run, and the variables that it leaves."""

import json
import pathlib

from replicator.training.checkpoints import store
from replicator.training.workdir.reader import TIMES

import numpy as np
import pytest
import tensorflow as tf


def timed_rows(workdir: pathlib.Path) -> list[dict]:
  """The rows of `metrics.jsonl`, which must all be whole."""
  return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def rows(workdir: pathlib.Path) -> list[dict]:
  """The same without what a clock measured, which no other run repeats."""
  return [{name: value for name, value in row.items() if name not in TIMES}
          for row in timed_rows(workdir)]


def variables(workdir: pathlib.Path) -> dict[str, np.ndarray]:
  """The floating variables of the last checkpoint: networks, slots and averages."""
  return {name: value for name, value in store.read(workdir / "checkpoints").items()
          if tf.as_dtype(value.dtype).is_floating}


def assert_same_runs(found: pathlib.Path, expected: pathlib.Path, rtol: float = 1e-8,
                     atol: float = 1e-9, of_evaluations: float = 1e-9) -> None:
  """Both runs logged the same in float64, and ended with the same variables to `rtol`, `atol`.

  The relative differences `of_evaluations` may be larger, where features are float32.
  """
  for row, other in zip(rows(found), rows(expected), strict=True):
    assert row == {name: pytest.approx(value, rel=(
        of_evaluations if name.startswith("eval/") else 1e-9)) for name, value in other.items()}
  values = variables(found)
  for name, value in variables(expected).items():  # Some have a value for each replica.
    np.testing.assert_allclose(values[name], np.broadcast_to(value, values[name].shape), rtol, atol,
                               err_msg=name)
