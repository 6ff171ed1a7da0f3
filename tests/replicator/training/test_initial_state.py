"""What the constructor of a step leaves in Python: compared between processes and starts."""

import time

from replicator.training import initial_state
from tests.programs.two_networks import TwoNetworks

import keras
import numpy as np
import pytest
import tensorflow as tf


class Part(tf.Module):
  """Holds values."""

  def __init__(self, **values):
    super().__init__()
    for name, value in values.items():
      setattr(self, name, value)


@pytest.mark.parametrize("one, other", [
    (3, 4), (0.5, 0.25), ("a", "b"), (b"a", b"b"), (True, False), (np.float32(1), np.float32(2)),
    (["a", "b"], ["b", "a"]), ({"a": 1, "b": 2}, {"a": 2, "b": 1}),
    ((1, [2, {"c": 3}]), (1, [2, {}])), ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    (np.arange(3), np.array([0, 2, 1])),
    (np.array(["a", "b"]), np.array(["b", "a"])), (tf.constant([1.0]), tf.constant([2.0])),
    (tf.constant("a"), tf.constant("b"))])
def test_a_value_that_differs_is_named(one, other):
  first, same, second = (initial_state.digests(Part(own=value, part=[Part(own=value)]))
                         for value in (one, one, other))
  assert first == same
  assert [name for name in first if first[name] != second[name]] == ["own", "part/0/own"]


@pytest.mark.parametrize("make", [
    object, lambda: {str(i) for i in range(50)}, time.time,
    lambda: [object(), keras.layers.Dense(1)],
    lambda: "/tmp/run-1", lambda: np.random.default_rng(), lambda: np.array([object()]),
    lambda: tf.Variable(1.0), lambda: lambda: None])
def test_what_has_no_stable_state_is_left_out(make):
  assert "own" not in initial_state.digests(Part(own=make()))


def test_steps_and_their_optimizers_are_alike_also_in_the_same_process():
  assert initial_state.digests(TwoNetworks()) == initial_state.digests(TwoNetworks())


def test_what_a_function_refers_to_belongs_to_it():
  def step_with(words: list[str]):
    return lambda batch: {"loss": len(words)}

  assert initial_state.digests(step_with(["a"])) != initial_state.digests(step_with(["b"]))
