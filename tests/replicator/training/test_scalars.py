"""The means of scalars between log points."""

import json

import numpy as np

from replicator.training.run_state import RunningMeans


def test_a_mean_is_over_the_steps_that_returned_the_scalar():
  means = RunningMeans()
  means.add({"a": np.array([1.0, 2.0, 3.0])})
  means.add({"a": np.array([4.0]), "b": np.array([10.0])})
  assert means.take() == {"a": 2.5, "b": 10.0}
  assert means.take() == {}
  means.add({"a": np.array([7.0])})
  assert means.take() == {"a": 7.0}


def test_sums_are_of_64_bits():
  means = RunningMeans()
  means.add({"a": np.array([2.0 ** 25, 1.0], np.float32)})
  assert means.take() == {"a": 2.0 ** 24 + 0.5}


def test_means_go_on_from_their_state():
  means = RunningMeans()
  means.add({"a": np.array([1.0, 2.0])})
  resumed = RunningMeans(json.loads(json.dumps(means.state())))
  resumed.add({"a": np.array([6.0])})
  assert resumed.take() == {"a": 3.0}
  assert means.take() == {"a": 1.5}  # It has its own.
  old = RunningMeans({"sums": {"a": 1.0}, "count": 1})  # Saved by an earlier version.
  old.add({"a": np.array([2.0])})
  assert old.take() == {"a": 1.5}
