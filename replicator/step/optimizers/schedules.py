"""Numbers that change during a run: learning rates, and any other float that a step reads.

A schedule is a pure function of a count, so a resumed run continues it exactly. Those here are
Keras schedules, and every Keras schedule can take their place. A learning rate and the other
options of an optimizer count its updates; everything else counts training steps.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

from replicator.errors import UsageError, at_least_one
from replicator.step import context

import gin
import keras
import numpy as np
import tensorflow as tf

Schedule: TypeAlias = keras.optimizers.schedules.LearningRateSchedule
Number: TypeAlias = float | Schedule
"""The type of a parameter that takes a number or a schedule; `scheduled` reads it."""


def is_schedule(value: object) -> TypeGuard[Callable[[tf.Tensor], tf.Tensor]]:
  """Whether a value is a schedule, and no number."""
  return isinstance(value, keras.optimizers.schedules.LearningRateSchedule)


def scheduled(value: Number) -> float | tf.Tensor:
  """The number that a parameter has in this step: a schedule's value at `step_number()`.

      penalty = replicator.scheduled(self.weight) * tf.reduce_mean(squares)

  Returns:
    A number as it is; of a schedule a floating [] tensor, float64 in a float64 run.
  """
  if not is_schedule(value):
    return value
  return tf.cast(value_at(value, context.step_number()), keras.config.floatx())


def value_at(value: Number, count: tf.Tensor) -> tf.Tensor:
  """A number, or a schedule's value at a count, int64 []: float64 []."""
  if not is_schedule(value):
    return tf.constant(value, tf.float64)  # tf.cast of a float would round it to float32 first.
  with all_digits(value):
    return tf.cast(value(count), tf.float64)


def doubt(value: Number, counts: int) -> str:
  """What looks like a mistake in a rate over so many counts, as `is 0 in the last 60%`; or nothing.
  """
  if not is_schedule(value):
    return ""
  at = lambda count: float(value_at(value, tf.constant(count, tf.int64)))
  values = [at(counts * place // 100) for place in range(0, 100, 5)]
  if values[-1]:
    is_rising = all(a < b for a, b in itertools.pairwise(values))
    return "still warms up at the end" if is_rising and at(10 * counts) > 1.5 * values[-1] else ""
  zeros = 100 - 5 * (1 + max((i for i, rate in enumerate(values) if rate), default=len(values)))
  return f"is 0 in the last {zeros}%" if zeros > 10 else ""


# ---- All digits of a float ----------------------------------------------------------------------


@contextlib.contextmanager
def all_digits(*owners: Any) -> Iterator[None]:
  """A context in which schedules compute with all digits of their floats, in a float64 run."""
  with contextlib.ExitStack() as stack:
    for owner in owners if keras.config.floatx() == "float64" else ():
      stack.enter_context(replaced(owner, unrounded(owner)))
    yield


class _Float64(np.float64):
  """A Python float that Keras converts to float64; any other becomes a float32 first."""

  __array_priority__ = -np.inf  # NumPy leaves arithmetic with a Keras variable to the variable.


def unrounded(owner: Any) -> dict[str, Any]:
  """The floats and lists of numbers among an object's attributes, in a type that Keras keeps exact.
  """
  found = {name: _Float64(value) for name, value in vars(owner).items() if isinstance(value, float)}
  lists = {name: list(map(_Float64, value)) for name, value in vars(owner).items()
           if isinstance(value, list | tuple) and value
           and all(isinstance(x, float | int) for x in value)}
  return {**found, **lists}


@contextlib.contextmanager
def replaced(owner: Any, values: Mapping[str, Any]) -> Iterator[None]:
  """A context in which attributes of an object have other values."""
  attributes = vars(owner)  # Keras' own setter would look at each value for variables to keep.
  before = {name: attributes[name] for name in values}
  attributes.update(values)
  try:
    yield
  finally:
    attributes.update(before)


class _Computed(Schedule):
  """A schedule whose value at a count, int64 [], is `compute(count)`, floating []."""

  def __init__(self, compute: Callable[[tf.Tensor], tf.Tensor]):
    self._compute = compute

  def __call__(self, step: tf.Tensor) -> tf.Tensor:
    return tf.cast(self._compute(step), keras.config.floatx())


@gin.configurable(module="replicator")
def linear(initial: float, final: float, end: int, start: int = 0) -> Schedule:
  """A number that moves from `initial` at step `start` to `final` at step `end`, on a line.

  Raises:
    UsageError: `end` is not after `start`, or `start` is negative.
  """
  _check_order("linear", start, end)
  return _Computed(lambda count: _between(initial, final, _share(count, start, end)))


@gin.configurable(module="replicator")
def cosine(initial: float, final: float, end: int, start: int = 0) -> Schedule:
  """A number that moves from `initial` at step `start` to `final` at step `end`, on half a cosine.

  Reference: Loshchilov and Hutter 2017 (arXiv:1608.03983), equation 5, without restarts.

  Raises:
    UsageError: `end` is not after `start`, or `start` is negative.
  """
  _check_order("cosine", start, end)
  wave = lambda count: (1 - tf.cos(math.pi * _share(count, start, end))) / 2
  return _Computed(lambda count: _between(initial, final, wave(count)))


@gin.configurable(module="replicator")
def piecewise(steps: Sequence[int], values: Sequence[float]) -> Schedule:
  """A number on straight lines between points: `values[i]` at step `steps[i]`.

  It is constant before the first point and after the last. For a number that jumps, bind
  `@piecewise_constant_decay()` of Keras.

  Raises:
    UsageError: there are not as many steps as values, there is none, or the steps do not rise.
  """
  if len(steps) != len(values) or not steps:
    raise UsageError(f"piecewise: {len(steps)} steps and {len(values)} values; write a value for "
                     "each step")
  if steps[0] < 0 or any(a >= b for a, b in itertools.pairwise(steps)):
    raise UsageError(f"piecewise.steps = {list(steps)}: the schedule must not end before it "
                     "begins; write rising steps, from 0 on")

  def compute(count: tf.Tensor) -> tf.Tensor:
    value = tf.constant(values[0], tf.float64)
    for (start, first), (end, last) in itertools.pairwise(zip(steps, values, strict=True)):
      value = tf.where(count > start, _between(first, last, _share(count, start, end)), value)
    return value

  return _Computed(compute)


@gin.configurable(module="replicator")
def warmup(value: Number, steps: int) -> Schedule:
  """A number or a schedule, which rises in proportion during the first `steps` steps.

  The first step has `value / steps`, and not 0.

  Reference: Goyal et al. 2017 (arXiv:1706.02677), section 2.2.

  Raises:
    UsageError: `steps` is below 1.
  """
  if steps < 1:
    raise UsageError(f"warmup.steps = {steps}: must be at least 1; without a warm-up bind the "
                     "value itself")
  return _Computed(lambda count: _risen(count, steps) * value_at(value, count))


@gin.configurable(module="replicator")
def scaled_with_batch(value: Number, batch_size: int = 256) -> Schedule:
  """A number or a schedule for batches of `batch_size`, in proportion to the run's global batch.

  A learning rate of 0.1 for 256 examples is 0.4 in a run with `train.global_batch_size = 1024`.

  Reference: Goyal et al. 2017 (arXiv:1706.02677), section 2.1, the linear scaling rule.

  Raises:
    UsageError: `batch_size` is below 1.
  """
  at_least_one("scaled_with_batch", batch_size=batch_size)
  factor = context.run.global_batch_size / batch_size
  return _Computed(lambda count: factor * value_at(value, count))


@gin.configurable(module="replicator")
def half_life(updates: Number) -> Schedule:
  """The decay of an average that forgets half of its past in so many updates: `0.5^(1 / updates)`.

  `updates`, a number or a schedule, is 0 for an average that is a copy: its decay is 0.

  Raises:
    UsageError: `updates` is negative.
  """
  if isinstance(updates, int | float) and updates < 0:
    raise UsageError(f"half_life.updates = {updates}: must be a number of updates, 0 or above")
  return _Computed(
      lambda count: tf.pow(tf.constant(0.5, tf.float64), 1 / value_at(updates, count)))


def _check_order(name: str, start: int, end: int) -> None:
  if not 0 <= start < end:
    raise UsageError(f"{name}: start = {start} and end = {end}: the schedule must not end before "
                     "it begins; write 0 <= start < end")


def _share(count: tf.Tensor, start: int, end: int) -> tf.Tensor:
  """The part of the way from `start` to `end` at a count, in [0, 1]: float64 []."""
  # In float64, because a float32 does not hold every step of a long run.
  return tf.clip_by_value((tf.cast(count, tf.float64) - start) / (end - start), 0.0, 1.0)


def _risen(count: tf.Tensor, steps: int) -> tf.Tensor:
  return tf.minimum(tf.cast(count + 1, tf.float64) / steps, 1.0)


def _between(first: float, last: float, share: tf.Tensor) -> tf.Tensor:
  return first * (1 - share) + last * share


@gin.configurable(module="replicator")
def LinearDecay(learning_rate: float, updates: int, start: int = 0, warmup: int = 0) -> Schedule:
  """A learning rate that rises linearly, stays constant, then falls linearly to zero.

  Args:
    learning_rate: the highest learning rate.
    updates: the number of updates of the optimizer after which the rate is zero.
    start: the number of updates after which the rate begins to fall.
    warmup: the number of updates over which the rate rises; 0 starts at the highest rate.

  Raises:
    UsageError: `warmup <= start < updates` does not hold.
  """
  if not warmup <= start < updates:
    raise UsageError(f"LinearDecay: warmup = {warmup}, start = {start} and updates = {updates} "
                     "must follow each other in this order")
  return _Computed(lambda count: _risen(count, warmup or 1) * _between(
      learning_rate, 0.0, _share(count, start, updates)))
