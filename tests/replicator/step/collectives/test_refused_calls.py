"""Calls of collectives that cannot be right."""

import re

import replicator
from replicator import Replicator, UsageError, all_concat, all_gather, all_max, all_mean, all_sum
from tests.programs.refusals import refusal

import numpy as np
import pytest
import tensorflow as tf


def static_id() -> int:
  return int(tf.get_static_value(replicator.replica_id()))


DISAGREEMENTS = {
    "another collective": lambda x: all_sum(x) if static_id() else all_mean(x),
    "another structure": lambda x: all_sum([x] if static_id() else (x,)),
    "another shape": lambda x: all_sum(x[:1 + static_id()]),
    "another dtype": lambda x: all_sum(tf.cast(x, tf.int32) if static_id() else x),
    "another order": lambda x: [(all_sum, all_max)[i](x) for i in (static_id(), 1 - static_id())],
    "another width": lambda x: all_concat(x[:, :1 + static_id()]),
    "another source": lambda x: replicator.broadcast(x, static_id()),
    "other groups": lambda x: all_sum(x, [[0, 1]] if static_id() else [[1, 0]]),
    "another without tensors": lambda x: all_sum([]) if static_id() else all_mean([]),
    "one without tensors before": lambda x: [
        all_sum(each) for each in ([[], x] if static_id() else [x])],
    "one without tensors more": lambda x: [
        all_sum(each) for each in ([x, []] if static_id() else [x])],
    "one call more": lambda x: [all_sum(x)] * 2 if static_id() else [all_sum(x), all_max(x)],
}


@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
def test_replicas_that_make_different_calls_are_refused(two, eager, request):
  if eager:
    request.getfixturevalue("run_eagerly")()
  says = r"replica {} (calls (all_|broadcast).*|has ended its step)"
  message = f"^{says.format(0)}, but {says.format(1)}; every replica must make the same "
  for name, step in DISAGREEMENTS.items():
    assert re.search(message, refusal(two.run, step, np.ones([4, 2]))), name


def test_a_collective_where_replicas_cannot_meet_is_refused():
  called = r"py:\d+: all_sum of float32 \(\): called inside a tf.while_loop"
  for within in (lambda x: tf.while_loop(lambda y: y < 3, lambda y: [all_sum(y)], [x]),
                 lambda x: tf.cond(x > 0, lambda: all_sum(x), lambda: x),
                 lambda x: tf.function(all_sum, autograph=False)(x)):
    with pytest.raises(UsageError, match=called):
      Replicator("mirrored", logical_cpus=2).run(lambda within=within: within(tf.constant(1.0)))


REFUSED = {
    "disjoint, of equal size, and together contain all 2 replicas": [
        lambda x: all_sum(x, [[0]]), lambda x: all_sum(x, [[0, 0]]), lambda x: all_sum(x, []),
        lambda x: all_sum(x, [[0, 1], [1, 0]]), lambda x: all_sum(x, [[0, 1], []])],
    "broadcast: source = 2: must be a replica from 0 to 1": [lambda x: replicator.broadcast(x, 2)],
    "does not divide evenly among the group's 2 replicas": [
        lambda x: replicator.reduce_scatter(x[:1]), lambda x: replicator.all_to_all(x[0, 0])],
    "has no such axis": [lambda x: all_concat(x, axis=2)],
    "all_mean: a tensor is int32, .* or use all_sum": [lambda x: all_mean(tf.cast(x, tf.int32))],
    "all_mean: a tensor is uint8": [lambda x: all_mean(tf.cast(x, tf.uint8))],
    "all_mean: a tensor is bool, but its mean may not be; cast it to float32$": [
        lambda x: all_mean(x > 0)],
    "all_sum: a tensor is bool": [lambda x: all_sum(x > 0)],
    "string tensors cannot be sent": [lambda x: all_gather("a word")],
    "map_gather: there are no items": [lambda x: replicator.map_gather([], tf.identity)],
    "all_concat, axis 0: a tensor has an unknown number of axes; .*ensure_shape": [
        lambda x: all_concat(tf.py_function(lambda: x, [], tf.float64))],
    "op = 'product': must be 'sum'": [lambda x: replicator.map_reduce([x], tf.identity, "product")],
}


def test_a_call_that_makes_no_sense_is_refused(two):
  for message, steps in REFUSED.items():
    for step in steps:
      assert re.search(message, refusal(two.run, step, np.ones([4, 2])))
