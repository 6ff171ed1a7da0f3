"""Schedules against closed forms, wherever a number may be one."""

from replicator import UsageError, scheduled, schedules, wrap_optimizer
from replicator.step import context
from tests.replicator.step.optimizers.small_network import exact_casts

import keras
import numpy as np
import pytest
import tensorflow as tf


def values(schedule: schedules.Schedule, steps) -> np.ndarray:
  return np.array([schedule(tf.constant(step, tf.int64)) for step in steps])


@pytest.fixture
def run_of(monkeypatch):
  """A function that makes this process one of a run of so many steps."""
  return lambda steps: monkeypatch.setattr(context.run, "steps", steps)


STEPS = np.arange(12)
SHARE = np.clip((STEPS - 2) / 8, 0, 1)  # Of the way from step 2 to step 10.
CURVES = {
    "linear": 3 - 4 * SHARE,
    "cosine": -1 + 4 * (1 + np.cos(np.pi * SHARE)) / 2,
    "polynomial": -1 + 4 * (1 - SHARE) ** 2}


@pytest.mark.parametrize("name", CURVES)
def test_a_number_moves_between_steps_or_shares_of_the_run_after_a_warm_up(float64, run_of, name):
  run_of(20)
  schedule, expected = getattr(schedules, name), CURVES[name]
  np.testing.assert_allclose(
      values(schedule(3.0, -1.0, start=2, end=10), STEPS), expected, atol=1e-15)
  np.testing.assert_allclose(
      values(schedule(3.0, -1.0, start=0.1, end=0.5), STEPS), expected, atol=1e-15)
  risen = np.minimum((STEPS + 1) / 4, 1)
  for warmup in (4, 0.2):
    np.testing.assert_allclose(values(
        schedule(3.0, -1.0, 2, 10, warmup), STEPS), risen * expected, atol=1e-15)
  run_of(10)  # Without an end it ends with the run, and falls to 0.
  np.testing.assert_allclose(
      values(schedule(4.0, start=0.2), STEPS), expected + 1, atol=1e-15)
  run_of(2)  # It would begin with the end of the run.
  np.testing.assert_array_equal(values(schedule(4.0, start=2), [0, 1]), 4.0)


def test_a_number_jumps_at_boundaries(float64, run_of):
  run_of(20)
  expected = [3.0, 3.0, 0.5, 0.5, 0.5, -1.0]
  for boundaries in ([2, 5], [0.1, 0.25], [2, 0.25]):
    np.testing.assert_array_equal(
        values(schedules.piecewise(boundaries, [3.0, 0.5, -1.0]), range(6)), expected)
  np.testing.assert_array_equal(
      values(schedules.piecewise([], [2.0], warmup=2), range(3)), [1.0, 2.0, 2.0])


def test_a_share_needs_a_run(run_of):
  run_of(None)
  with pytest.raises(UsageError, match=r"a schedule with 0\.25 needs a run"):
    values(schedules.linear(1.0, start=0.25), [0])
  assert values(schedules.linear(1.0, start=2, end=4), [3]) == [0.5]


@pytest.mark.parametrize("curve", [schedules.linear, schedules.cosine])
def test_the_last_value_is_reached_exactly(curve):
  found = values(curve(0.9, 0.99, end=1000), [0, 1000, 10 ** 9])
  np.testing.assert_array_equal(found, np.float32([0.9, 0.99, 0.99]))


def test_neighboring_steps_of_a_long_run_differ(float64):
  first, second = values(schedules.linear(0.0, 1.0, end=2 ** 30), [2 ** 29, 2 ** 29 + 1])
  assert second - first == 2.0 ** -30


@pytest.mark.parametrize("value, later", [(0.3, 0.3), (schedules.linear(0.3, 0.0, end=10), 0.18)])
def test_a_number_is_scaled_with_the_batch_of_the_run(float64, monkeypatch, value, later):
  monkeypatch.setattr(context.run, "global_batch_size", 1024)
  found = values(schedules.scaled_with_batch(value), [0, 4])
  np.testing.assert_allclose(found, [4 * 0.3, 4 * later], rtol=1e-15)
  np.testing.assert_allclose(values(schedules.scaled_with_batch(value, 2048), [0]), [0.15])
  with pytest.raises(UsageError, match=r"scaled_with_batch\.batch_size = 0: must be at least 1"):
    schedules.scaled_with_batch(value, 0)


def test_an_average_forgets_half_in_its_half_life(float64):
  np.testing.assert_allclose(values(schedules.half_life(10), [0, 5]) ** 10, 0.5, rtol=1e-14)
  rising = values(schedules.half_life(schedules.linear(0.0, 8.0, end=8)), [0, 1, 8])
  np.testing.assert_allclose(rising, [0, 0.5, 0.5 ** 0.125], rtol=1e-14)
  np.testing.assert_array_equal(values(schedules.half_life(0), [0, 5]), 0.0)  # A copy.


@pytest.mark.parametrize("make, message", [
    (lambda: schedules.linear(1.0, 0.0, start=20, end=10),
     "linear: start = 20 and end = 10: the schedule must not end before it begins"),
    (lambda: schedules.cosine(1.0, 0.0, end=0), "cosine: start = 0 and end = 0"),
    (lambda: values(schedules.linear(1.0, start=0.5, end=40), [0]),
     "linear: start = 0.5 and end = 40 are steps 50 and 40 of this run"),
    (lambda: schedules.linear(1.0, start=-1), "linear: -1 is not a point in a run"),
    (lambda: schedules.cosine(1.0, end=1.5), "cosine: 1.5 is not a point in a run"),
    (lambda: schedules.linear(1.0, warmup=1.5), "linear: 1.5 is not a point in a run"),
    (lambda: values(schedules.piecewise([0, 9, 3], [0.0, 1.0, 2.0, 3.0]), [0]),
     r"piecewise.boundaries = \[0, 9, 3\]: must increase"),
    (lambda: values(schedules.piecewise([5, 0.05], [1.0, 2.0, 3.0]), [0]),
     r"piecewise.boundaries = \[5, 0.05\]: must increase"),
    (lambda: schedules.piecewise([-1], [1.0, 2.0]), "piecewise: -1 is not a point"),
    (lambda: schedules.piecewise([0, 9], [1.0]), "piecewise: 2 boundaries and 1 values"),
    (lambda: schedules.half_life(-1), "half_life.updates = -1"),
])
def test_a_schedule_that_makes_no_sense_is_refused(make, message, run_of):
  run_of(100)
  with pytest.raises(UsageError, match=message):
    make()


def test_a_step_reads_the_value_of_its_own_number(one_or_two):
  step = lambda batch: tf.reduce_mean(batch) * scheduled(schedules.linear(1.0, 0.0, end=4))
  found = [one_or_two.run(step, np.ones([2], np.float32))[-1].numpy() for _ in range(3)]
  np.testing.assert_array_equal(found, [1.0, 0.75, 0.5])
  assert scheduled(0.1) == 0.1


@pytest.mark.parametrize("schedule, expected", [
    (keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.9), 0.1 * 0.9 ** (np.arange(3) / 3)),
    (keras.optimizers.schedules.PiecewiseConstantDecay([1], [0.1, 0.3]), [0.1, 0.1, 0.3]),
    (schedules.scaled_with_batch(keras.optimizers.schedules.InverseTimeDecay(0.1, 10, 0.7), 1),
     0.1 / (1 + 0.7 * np.arange(3) / 10))], ids=["exponential", "constant", "nested"])
def test_schedules_of_keras_have_all_digits_in_a_float64_run(
    float64, one_or_two, schedule, expected):
  step = lambda batch: scheduled(schedule) * tf.reduce_mean(batch)
  found = [one_or_two.run(step, np.ones([2]))[-1].numpy() for _ in range(3)]
  np.testing.assert_allclose(found, expected, rtol=1e-15)


# Weight decays of few bits, because Keras alone rounds them to float32.
OPTIONS = {
    "Adam": (keras.optimizers.Adam, {"beta_1": (0.0, 0.5), "beta_2": (0.9, 0.99)}),
    "AdamW": (keras.optimizers.AdamW, {"weight_decay": (0.125, 0.0)}),
    "RMSprop": (keras.optimizers.RMSprop, {"rho": (0.5, 0.875)}),
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_options_on_a_schedule_are_those_of_keras_set_by_hand(two, float64, kind):
  make, ends = OPTIONS[kind]
  target = np.linspace(-1.0, 1.0, 5)
  plain = make(0.1)
  weights = keras.Variable(target * 3)
  plain.build([weights])
  expected = []
  for step in range(6):
    for name, (first, last) in ends.items():
      setattr(plain, name, first + (last - first) * min(step / 4, 1.0))
    with exact_casts():
      plain.apply([weights.value - target], [weights])
    expected.append(weights.numpy())

  with two.scope():
    variable = keras.Variable(target * 3)
    optimizer = wrap_optimizer(
        make(0.1, **{name: schedules.linear(*pair, end=4) for name, pair in ends.items()}),
        [variable])

  def step(_):
    optimizer.apply([variable.value - target])

  for values_by_hand in expected:
    two.run(step, np.ones([2]))
    np.testing.assert_allclose(variable.numpy(), values_by_hand, rtol=1e-12)


def test_all_optimizers_of_a_step_count_its_steps(one_or_two, float64):
  with one_or_two.scope():
    rates = (0.5, schedules.linear(0.5, end=4))
    optimizers = [
        wrap_optimizer(keras.optimizers.SGD(rate), [keras.Variable(0.0)], every=every)
        for rate, every in ((rates[0], 1), (rates[1], 1), (rates[1], 2))]

  def step(_):
    for optimizer in optimizers:
      for _ in range(2):  # Two updates a step.
        optimizer.apply([tf.constant(-1.0, tf.float64)])
    return optimizers[1].learning_rate

  found = [float(one_or_two.run(step, np.ones([2]))[0]) for _ in range(5)]
  np.testing.assert_array_equal(found, [0.5, 0.375, 0.25, 0.125, 0.0])
  constant, all_calls, every_second = (o.variables_updated[0].numpy() for o in optimizers)
  np.testing.assert_array_equal([constant, all_calls, every_second], [5.0, 2.5, 1.25])


def test_an_update_by_hand_is_at_the_step_that_the_run_has_reached(float64, monkeypatch):
  variable = keras.Variable(0.0)
  optimizer = wrap_optimizer(keras.optimizers.SGD(schedules.linear(0.5, end=4)), [variable])
  for step, expected in ((0, -0.5), (3, -0.625)):
    monkeypatch.setattr(context.run.outside, "step", step)
    optimizer.apply([tf.constant(1.0, tf.float64)])
    assert variable.numpy() == expected


def test_an_average_decays_by_the_number_of_the_step(two, float64):
  with two.scope():
    variable = keras.Variable(np.zeros(2))
    optimizer = wrap_optimizer(keras.optimizers.SGD(1.0), [variable],
                               ema_decay=schedules.linear(0.0, 0.9, end=3))
  average = 0.0
  for done in range(5):
    two.run(lambda _: optimizer.apply([tf.constant([-1.0, -1.0], tf.float64)]), np.ones([2]))
    decay = min(done / 3, 1.0) * 0.9
    average = decay * average + (1 - decay) * (done + 1)
    np.testing.assert_allclose(optimizer.averages[0].numpy(), [average] * 2, rtol=1e-12)
