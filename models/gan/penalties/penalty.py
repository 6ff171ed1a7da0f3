"""Penalties on a discriminator: a function of its scores, a weight, and a period."""

from collections.abc import Callable, Sequence
from typing import Any

import replicator
from models.gan.penalties.scores import Scores
from replicator.errors import at_least_one
from replicator.step import context
from replicator.step.optimizers.schedules import Number

import tensorflow as tf


class Penalty(tf.Module):
  """A term of the discriminator's loss: `penalty(scores) -> []`.

  With `every = k` it is applied only at steps 0, k, 2 k, ..., k times as strong, so that its mean
  over steps stays the same ("lazy regularization": Karras et al. 2020, arXiv:1912.04958, section
  3.1). Other steps do not compute it, except under XLA on several replicas.

  Args:
    name: its gin name.
    measure: `(scores, *prepared) -> []`, the mean over the replica's examples. If `every` is above
      1, it runs in a branch, so it must not draw, call a collective or change state.
    weight: multiplies the measure; a number or a schedule.
    every: steps between computations.
    prepare: `scores -> tensors`, computes inputs of the measure outside the branch, such as draws.

  Raises:
    UsageError: `every` is below 1.
  """

  def __init__(self, name: str, measure: Callable[..., tf.Tensor], weight: Number, every: int = 1,
               prepare: Callable[[Scores], tuple[Any, ...]] = lambda scores: ()):
    super().__init__(name=name)
    at_least_one(name, every=every)
    self.weight = weight
    self.every = every
    self._measure = measure
    self._prepare = prepare

  def __call__(self, scores: Scores) -> tf.Tensor:
    """Returns the penalty [] in the dtype of the scores; zero at steps that skip it."""
    prepared = self._prepare(scores)
    dtype = scores.real.dtype
    measured = lambda: tf.cast(self._measure(scores, *prepared), dtype)
    value = self._when_due(measured, tf.zeros([], dtype)) if self.every > 1 else measured()
    return tf.cast(replicator.scheduled(self.weight) * value, dtype)

  def _when_due(self, measured: Callable[[], tf.Tensor], zero: tf.Tensor) -> tf.Tensor:
    is_due = tf.equal(replicator.step_number() % self.every, 0)
    if context.current().xla_in_parts:
      # With several replicas, XLA cannot compile a branch with gradients of tensors from outside
      # it. So every step computes the penalty.
      return tf.where(is_due, self.every * measured(), zero)
    return tf.cond(is_due, lambda: self.every * measured(), lambda: zero)


def total(penalties: Sequence[Penalty], scores: Scores) -> tf.Tensor:
  """Returns the sum [] of penalties, in the dtype of the scores."""
  return tf.add_n([tf.zeros([], scores.real.dtype), *(penalty(scores) for penalty in penalties)])
