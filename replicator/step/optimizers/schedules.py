"""Schedules: numbers that change during a run, such as learning rates or other floats of a step.

A schedule is a pure function of the number of training steps, no matter what reads it or how often
an optimizer updates, so a resumed run continues it exactly. The schedules here are Keras schedules,
and any Keras schedule can take their place. Points in a run, such as `end`, are a number of steps
if they are ints, and a fraction of `train.steps` if they are floats.
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
Place: TypeAlias = int | float
"""A point in a run: a number of steps, or, as a float, a fraction of `train.steps`."""


def is_schedule(value: object) -> TypeGuard[Callable[[tf.Tensor], tf.Tensor]]:
  """Returns whether a value is a schedule rather than a number."""
  return isinstance(value, keras.optimizers.schedules.LearningRateSchedule)


def scheduled(value: Number) -> float | tf.Tensor:
  """Returns a parameter's value in this step: for a schedule, its value at `step_number()`.

      penalty = replicator.scheduled(self.weight) * tf.reduce_mean(squares)

  Returns:
    A number as it is; for a schedule, a floating-point [] tensor, float64 in a float64 run.
  """
  if not is_schedule(value):
    return value
  return tf.cast(value_at(value, context.step_number()), keras.config.floatx())


def value_at(value: Number, count: tf.Tensor) -> tf.Tensor:
  """Returns a number, or a schedule's value at a count, int64 [], as float64 []."""
  if not is_schedule(value):
    return tf.constant(value, tf.float64)  # tf.cast of a float would round it to float32 first.
  with all_digits(value):
    return tf.cast(value(count), tf.float64)


def doubt(value: Number, steps: int) -> str:
  """Describes a likely mistake in a rate over `steps` steps, such as `is 0 for the last 60%`."""
  if not is_schedule(value):
    return ""
  at = lambda step: float(value_at(value, tf.constant(step, tf.int64)))
  values = [at(steps * place // 100) for place in range(0, 100, 5)]
  if values[-1]:
    is_rising = all(a < b for a, b in itertools.pairwise(values))
    if is_rising and at(10 * steps) > 1.5 * values[-1]:
      return "is still warming up at the end"
  elif any(values) and (
      zeros := 100 - 5 * (1 + max(i for i, x in enumerate(values) if x))) > 10:
    return f"is 0 for the last {zeros}%"
  start, end = getattr(value, "span", lambda: (0, steps))()
  if start >= steps:
    return f"never changes, because its schedule starts at step {start}"
  return f"does not change after step {end}" if end < steps else ""


# ---- All digits of a float ----------------------------------------------------------------------


@contextlib.contextmanager
def all_digits(*owners: Any) -> Iterator[None]:
  """Makes schedules compute in the body with all digits of their floats, in a float64 run."""
  with contextlib.ExitStack() as stack:
    for owner in owners if keras.config.floatx() == "float64" else ():
      stack.enter_context(replaced(owner, unrounded(owner)))
    yield


class _Float64(np.float64):
  """A Python float that Keras converts to float64; Keras rounds any other to float32 first."""

  __array_priority__ = -np.inf  # NumPy leaves arithmetic with a Keras variable to the variable.


def unrounded(owner: Any) -> dict[str, Any]:
  """Returns the float and number-list attributes of an object in a type that Keras keeps exact."""
  found = {name: _Float64(value) for name, value in vars(owner).items() if isinstance(value, float)}
  lists = {name: list(map(_Float64, value)) for name, value in vars(owner).items()
           if isinstance(value, list | tuple) and value
           and all(isinstance(x, float | int) for x in value)}
  return {**found, **lists}


@contextlib.contextmanager
def replaced(owner: Any, values: Mapping[str, Any]) -> Iterator[None]:
  """Replaces attributes of an object in the body."""
  attributes = vars(owner)  # Keras' own setter would search each value for variables to track.
  before = {name: attributes[name] for name in values}
  attributes.update(values)
  try:
    yield
  finally:
    attributes.update(before)


class _Computed(Schedule):
  """A schedule whose value at a step, int64 [], is `compute(step)`, floating [].

  `span` returns the steps between which it changes, if they are known.
  """

  def __init__(self, compute: Callable[[tf.Tensor], tf.Tensor],
               span: Callable[[], tuple[int, int]] | None = None):
    self._compute = compute
    if span:
      self.span = span

  def __call__(self, step: tf.Tensor) -> tf.Tensor:
    return tf.cast(self._compute(step), keras.config.floatx())


@gin.configurable(module="replicator")
def linear(initial: float, final: float = 0.0, start: Place = 0, end: Place = 1.0,
           warmup: Place = 0) -> Schedule:
  """Returns a schedule that moves linearly from `initial` at `start` to `final` at `end`.

  Args:
    initial: the value until `start`.
    final: the value from `end` on.
    start: a number of steps, or, as a float, a fraction of the run.
    end: likewise; by default the end of the run.
    warmup: likewise. Until then, the value ramps up linearly: the first of n steps has 1 / n of it,
      not 0 (Goyal et al. 2017, arXiv:1706.02677, section 2.2).

  Raises:
    UsageError: `end` is not after `start`, or a point in the run is negative or a fraction above 1.
  """
  return _moving("linear", initial, final, start, end, warmup, lambda share: share)


@gin.configurable(module="replicator")
def cosine(initial: float, final: float = 0.0, start: Place = 0, end: Place = 1.0,
           warmup: Place = 0) -> Schedule:
  """Returns a schedule that follows half a cosine from `initial` at `start` to `final` at `end`.

  The arguments and errors are those of `linear`.

  Reference: Loshchilov and Hutter 2017 (arXiv:1608.03983), equation 5, without restarts.
  """
  return _moving("cosine", initial, final, start, end, warmup,
                 lambda share: (1 - tf.cos(math.pi * share)) / 2)


@gin.configurable(module="replicator")
def polynomial(initial: float, final: float = 0.0, start: Place = 0, end: Place = 1.0,
               warmup: Place = 0, power: float = 2.0) -> Schedule:
  """Returns a schedule that moves polynomially from `initial` at `start` to `final` at `end`.

  Its distance from `final` is proportional to `(1 - t)^power`, where t rises from 0 at `start` to 1
  at `end`. The other arguments and the errors are those of `linear`, which has power 1. You et al.
  2017 (arXiv:1708.03888), section 5, train with LARS and power 2.
  """
  return _moving("polynomial", initial, final, start, end, warmup,
                 lambda share: 1 - (1 - share) ** power)


@gin.configurable(module="replicator")
def piecewise(boundaries: Sequence[Place], values: Sequence[float], warmup: Place = 0) -> Schedule:
  """Returns a piecewise constant schedule, which takes the next of `values` at each boundary.

  Args:
    boundaries: increasing points in the run, each a number of steps, or, as a float, a fraction of
      the run.
    values: one more than there are boundaries; `values[i + 1]` applies from `boundaries[i]` on.
    warmup: see `linear`.

  Raises:
    UsageError: there is not one more value than boundaries, or the boundaries do not increase.
  """
  if len(values) != len(boundaries) + 1:
    raise UsageError(f"piecewise: {len(boundaries)} boundaries and {len(values)} values; write one "
                     "more value than boundaries")
  for place in (*boundaries, warmup):
    _check_place("piecewise", place)

  def compute(step: tf.Tensor) -> tf.Tensor:
    places = [_step_of(place) for place in boundaries]
    if any(a >= b for a, b in itertools.pairwise(places)):
      raise UsageError(f"piecewise.boundaries = {list(boundaries)}: must increase")
    value = tf.constant(values[0], tf.float64)
    for place, number in zip(places, values[1:], strict=True):
      value = tf.where(step >= place, tf.constant(number, tf.float64), value)
    return _risen(step, _step_of(warmup)) * value

  return _Computed(compute)


@gin.configurable(module="replicator")
def scaled_with_batch(value: Number, batch_size: int = 256) -> Schedule:
  """Scales a number or schedule for batches of `batch_size` in proportion to the global batch.

  A learning rate of 0.1 for 256 examples is 0.4 in a run with `train.global_batch_size = 1024`.

  Reference: Goyal et al. 2017 (arXiv:1706.02677), section 2.1, the linear scaling rule.

  Raises:
    UsageError: `batch_size` is below 1.
  """
  at_least_one("scaled_with_batch", batch_size=batch_size)
  factor = context.run.global_batch_size / batch_size
  return _Computed(lambda step: factor * value_at(value, step), getattr(value, "span", None))


@gin.configurable(module="replicator")
def half_life(updates: Number) -> Schedule:
  """Returns the decay of an average with a half-life of `updates`: `0.5^(1 / updates)`.

  `updates` is a number or a schedule. At 0, the decay is 0, and the average is a copy.

  Raises:
    UsageError: `updates` is negative.
  """
  if isinstance(updates, int | float) and updates < 0:
    raise UsageError(f"half_life.updates = {updates}: must be a number of updates, at least 0")
  return _Computed(
      lambda step: tf.pow(tf.constant(0.5, tf.float64), 1 / value_at(updates, step)))


def _moving(name: str, initial: float, final: float, start: Place, end: Place, warmup: Place,
            shape: Callable[[tf.Tensor], tf.Tensor]) -> Schedule:
  """Returns a schedule from `initial` to `final`; `shape` maps [0, 1] onto itself."""
  for place in (start, end, warmup):
    _check_place(name, place)

  def span() -> tuple[int, int]:
    first, last = _step_of(start), _step_of(end)
    # With `end = 1.0`, a run may end before `start`: the schedule then never changes. In a run of
    # few steps, a fraction may round to none.
    if first >= last if isinstance(end, int) else first > last and end < 1:
      raise UsageError(f"{name}: start = {start} and end = {end} are steps {first} and {last} "
                       "of this run: the schedule must not end before it begins")
    return first, last

  def compute(step: tf.Tensor) -> tf.Tensor:
    first, last = span()
    # In float64, because float32 cannot represent every step of a long run.
    share = tf.clip_by_value(
        (tf.cast(step, tf.float64) - first) / max(last - first, 1), 0.0, 1.0)
    moved = shape(share)
    return _risen(step, _step_of(warmup)) * (initial * (1 - moved) + final * moved)

  if type(start) is type(end) and start >= end:
    raise UsageError(f"{name}: start = {start} and end = {end}: the schedule must not end before "
                     "it begins")
  return _Computed(compute, span)


def _check_place(name: str, place: Place) -> None:
  """Raises a UsageError unless `place` is a number of steps or a fraction of the run."""
  is_step = isinstance(place, int) and not isinstance(place, bool) and place >= 0
  if not (is_step or (isinstance(place, float) and 0 <= place <= 1)):
    raise UsageError(f"{name}: {place!r} is not a point in a run; write a whole number of steps, "
                     "such as 500, or a fraction of the run from 0.0 to 1.0, such as 0.25")


def _step_of(place: Place) -> int:
  """Converts a place in the run to a step."""
  if isinstance(place, int):
    return place
  if context.run.steps is None:
    raise UsageError(f"a schedule with {place} needs a run, of which this is a fraction; outside "
                     "of train, write a whole number of steps")
  return round(place * context.run.steps)


def _risen(step: tf.Tensor, steps: int) -> tf.Tensor:
  return tf.minimum(tf.cast(step + 1, tf.float64) / max(steps, 1), 1.0)
