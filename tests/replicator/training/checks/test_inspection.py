"""The findings of the doctor in the graph of a step: draws, clipping, and changes of gradients."""

import functools
import inspect
import re
import types

import replicator
from replicator import random
from replicator.step import context
from replicator.training.checks import inspection
from tests.replicator.doctor.checks import cause, quantities

import keras
import numpy as np
import tensorflow as tf

SEED, SEEDS, GENERATOR = [1, 2], keras.random.SeedGenerator(1), tf.random.Generator.from_seed(0)


DRAWS = [  # With the numbers of draws, and of those with a state.
    (lambda: tf.random.normal([2]), 1, 1), (lambda: tf.random.uniform([2]), 1, 1),
    (lambda: tf.random.truncated_normal([2]), 1, 1), (lambda: tf.random.gamma([2], 1.0), 1, 1),
    (lambda: tf.random.categorical([[0.0, 1.0]], 1), 1, 1), (lambda: GENERATOR.normal([2]), 1, 0),
    (lambda: tf.random.shuffle([1.0, 2.0]), 1, 1),
    (lambda: tf.random.stateless_normal([2], SEED), 1, 0),
    (lambda: tf.random.stateless_truncated_normal([2], SEED), 1, 0),
    (lambda: tf.random.stateless_categorical([[0.0, 1.0]], 1, SEED), 1, 0),
    (lambda: tf.random.stateless_parameterized_truncated_normal([2], SEED), 1, 0),
    (lambda: keras.random.normal([2], seed=SEEDS), 1, 0), (lambda: tf.random.split(SEED), 0, 0),
    (lambda: tf.raw_ops.StatelessRandomGetAlg(), 0, 0)]


def test_every_kind_of_draw_is_seen_and_no_key():
  for draw, *expected in DRAWS:
    seen = inspection.Evidence(lambda: None)
    seen.look_at_graph(tf.function(draw, autograph=False).get_concrete_function().graph)
    assert [len(seen.draws), len(seen.stateful_draws)] == expected, inspect.getsource(draw)
    assert all(re.match(r"a (tf|keras)\.random draw at tests/.*/test_inspection\.py:\d+$", found)
               for found in seen.draws)


def test_calls_of_python_are_seen():
  call = tf.function(lambda: tf.numpy_function(np.float32, [1], tf.float32), autograph=False)
  seen = inspection.Evidence(lambda: None)
  seen.look_at_graph(call.get_concrete_function().graph)
  assert [text.partition("tests/")[0] for text in seen.python_code] == ["tf.numpy_function at "]


def clips_of(change) -> list[str]:
  """The findings between the tape and the optimizer."""
  seen, x = inspection.Evidence(lambda: None), tf.constant([1.0, 2.0])

  def step():
    with tf.GradientTape() as tape:
      tape.watch(x)
      loss = tf.reduce_sum(x ** 3)
    seen.look_at_gradients([change(tape.gradient(loss, x))])
  tf.function(step, autograph=False).get_concrete_function()
  return seen.clips


CHANGES = [
    (tf.abs, {"Abs"}), (tf.nn.l2_loss, {"L2Loss"}), (lambda g: tf.maximum(g, 1.0), {"Maximum"}),
    (lambda g: tf.minimum(g, 1.0), {"Minimum"}), (tf.math.rsqrt, {"Rsqrt"}), (tf.sign, {"Sign"}),
    (lambda g: tf.where(g > 1.0, g, 1.0), {"SelectV2"}), (tf.sqrt, {"Sqrt"}),
    (lambda g: tf.compat.v1.where(g > 1.0, g, g + 1.0), {"Select"}), (tf.square, {"Square"}),
    (tf.tanh, {"Tanh"}), (lambda g: tf.reshape(2.0 * g + 1.0, [2, 1]), set())]


def test_a_change_of_a_gradient_that_is_not_linear_is_seen():
  for change, operations in CHANGES:
    assert {text.partition(" at tests/")[0] for text in clips_of(change)} == operations


def test_every_clipping_is_named():
  for name, clip in {
      "norm": lambda g: tf.clip_by_norm(g, 1.0), "value": lambda g: tf.clip_by_value(g, 0.0, 1.0),
      "global_norm": lambda g: tf.clip_by_global_norm([g], 1.0)[0][0],
      "average_norm": lambda g: tf.compat.v1.clip_by_average_norm(g, 1.0)}.items():
    assert clips_of(clip)[0].startswith(
        f"tf.clip_by_{name} at tests/replicator/training/checks/test_inspection.py:")


def test_a_gradient_that_is_not_one_of_a_tape_is_made_by_hand(monkeypatch):
  monkeypatch.setattr(inspection, "_MOST_CHANGES", 3)
  def changed(gradient, times):
    for _ in range(times):
      gradient = tf.abs(gradient)
    return gradient
  assert [bool(clips_of(functools.partial(changed, times=times))) for times in (1, 3, 4)] == [
      True, True, False]
  assert clips_of(lambda _: tf.abs(tf.zeros([2]) + 1.0)) == []
  accumulated = lambda g: tf.while_loop(lambda i, _: i < 2, lambda i, g: (i + 1, g), [0, g])[1]
  assert len(clips_of(lambda g: tf.abs(accumulated(g)))) == 1  # In micro-batches.


def test_draws_are_for_joined_batches_if_they_have_as_many_rows():
  seen, drops = inspection.Evidence(lambda: None), replicator.Dropout(0.5)

  def step(x):
    context.current().hooks = [types.SimpleNamespace(drawn=seen.look_at_draw)]
    wide = tf.concat([x, x], 1) + random.normal("z", [4, 6])
    long = tf.concat([wide, wide], 0)
    dropped = drops(long, training=True) + drops(tf.concat([long, long], 0), training=True)[:8]
    seen.look_at_graph(tf.compat.v1.get_default_graph())
    return dropped + random.normal("w", [12, 6])[:8]

  replicator.Replicator("default").run(step, np.ones([4, 3], np.float32))
  lines = inspect.getsourcelines(step)
  line = lambda number: f"tests/replicator/training/checks/test_inspection.py:{lines[1] + number}"
  assert seen.draws_for_joined_batches() == [
      (f"a replicator.Dropout layer draws at {line(4)}", place) for place in (line(3), line(4))]
  assert seen.draws == []
  assert cause(quantities("loss", a=1.0), quantities("loss", a=1.5), seen).startswith(
      f"a replicator.Dropout layer draws at {line(4)} on batches that are joined at {line(3)}: on "
      "each replica their rows are in a different order; draw, or call the network, once for each")
