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


def test_a_line_and_half_a_wave_between_constants_and_lines_between_points(float64):
  steps = np.arange(12)
  wave = np.cos(np.pi * np.clip((steps - 2) / 8, 0, 1))
  for schedule, expected in (
      (schedules.linear(3.0, -1.0, start=2, end=10), np.interp(steps, [2, 10], [3.0, -1.0])),
      (schedules.cosine(3.0, -1.0, start=2, end=10), -1 + 4 * (1 + wave) / 2),
      (schedules.piecewise([1, 4, 9], [0.5, 2.0, -1.0]),
       np.interp(steps, [1, 4, 9], [0.5, 2.0, -1.0])),
      (schedules.piecewise([5], [2.0]), np.full(12, 2.0))):
    np.testing.assert_allclose(values(schedule, steps), expected, rtol=1e-15)


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


@pytest.mark.parametrize("value, later", [(0.3, 0.3), (schedules.linear(1.0, 0.0, end=10), 0.6)])
def test_a_warm_up_multiplies_a_number_or_a_schedule(float64, value, later):
  found = values(schedules.warmup(value, steps=4), range(5))
  base = np.full(5, 0.3) if value == 0.3 else 1 - np.arange(5) / 10
  np.testing.assert_allclose(found, base * [0.25, 0.5, 0.75, 1, 1], rtol=1e-15)
  assert found[-1] == pytest.approx(later)


def test_an_average_forgets_half_in_its_half_life(float64):
  np.testing.assert_allclose(values(schedules.half_life(10), [0, 5]) ** 10, 0.5, rtol=1e-14)
  rising = values(schedules.half_life(schedules.linear(0.0, 8.0, end=8)), [0, 1, 8])
  np.testing.assert_allclose(rising, [0, 0.5, 0.5 ** 0.125], rtol=1e-14)
  np.testing.assert_array_equal(values(schedules.half_life(0), [0, 5]), 0.0)  # A copy.


@pytest.mark.parametrize("times, expected", [
    ({"updates": 10}, {0: 0.4, 1: 0.36, 5: 0.2, 9: 0.04, 10: 0.0, 11: 0.0}),
    ({"updates": 10, "start": 6, "warmup": 4},
     {0: 0.1, 1: 0.2, 3: 0.4, 6: 0.4, 9: 0.1, 10: 0.0, 100: 0.0})], ids=["falls", "rises first"])
def test_a_linear_decay(float64, times, expected):
  schedule = schedules.LinearDecay(0.4, **times)
  np.testing.assert_allclose(values(schedule, list(expected)), list(expected.values()), atol=1e-15)


@pytest.mark.parametrize("make, message", [
    (lambda: schedules.linear(1.0, 0.0, start=20, end=10),
     "linear: start = 20 and end = 10: the schedule must not end before it begins"),
    (lambda: schedules.cosine(1.0, 0.0, end=0), "cosine: start = 0 and end = 0"),
    (lambda: schedules.piecewise([0, 9, 3], [1.0, 2.0, 3.0]),
     r"piecewise.steps = \[0, 9, 3\]: the schedule must not end before it begins"),
    (lambda: schedules.piecewise([0, 5, 5], [1.0, 2.0, 3.0]), r"piecewise.steps = \[0, 5, 5\]: "),
    (lambda: schedules.piecewise([-1, 5], [1.0, 2.0]), r"piecewise.steps = \[-1, 5\]: "),
    (lambda: schedules.piecewise([0, 9], [1.0]), "piecewise: 2 steps and 1 values"),
    (lambda: schedules.piecewise([], []), "piecewise: 0 steps and 0 values"),
    (lambda: schedules.half_life(-1), "half_life.updates = -1"),
    (lambda: schedules.LinearDecay(0.1, 5, start=5), "must follow each other in this order"),
    (lambda: schedules.LinearDecay(0.1, 9, start=2, warmup=3), "must follow each other in this"),
    (lambda: schedules.warmup(1.0, steps=0), "warmup.steps = 0: must be at least 1"),
])
def test_a_schedule_that_makes_no_sense_is_refused(make, message):
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
    (schedules.warmup(keras.optimizers.schedules.InverseTimeDecay(0.1, 10, 0.7), 1),
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


def test_an_average_decays_by_the_count_of_updates(two, float64):
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
