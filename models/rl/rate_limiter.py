"""The ratio of training steps to environment steps, and the length of an agent's run."""

import contextlib
import dataclasses
import fractions
from collections.abc import Iterator
from typing import TypeVar

from models.rl.environments.environments import Environments
from replicator import UsageError
from replicator.configuration import operative
from replicator.errors import above_zero

import gin
import tensorflow as tf

_Count = TypeVar("_Count", int, tf.Tensor)
_FINEST = 1_000_000  # The largest denominator of a ratio.


@gin.configurable
@dataclasses.dataclass(frozen=True)
class RateLimiter:
  """The ratio of training steps to environment steps, for agents that learn from a replay.

  Environment steps are the total of all environments. If actions are repeated, they are simulator
  frames, see `Environments.frames_per_step`.

  Attributes:
    learning_starts: environment steps before the first training step.
    update_ratio: training steps per environment step after that: 0.25 is one for every four
      environment steps, and 4.0 is four for each. It is rounded to a fraction with a denominator of
      at most 1,000,000.
  """

  learning_starts: int = 1000
  update_ratio: float = 0.125

  def __post_init__(self):
    above_zero("RateLimiter", learning_starts=self.learning_starts, update_ratio=self.update_ratio)
    if not self._ratio:
      raise UsageError(f"RateLimiter.update_ratio = {self.update_ratio}: must be at least "
                       f"{1 / _FINEST}")

  @property
  def _ratio(self) -> fractions.Fraction:
    return fractions.Fraction(self.update_ratio).limit_denominator(_FINEST)

  def environment_steps(self, training_step: int) -> int:
    """Returns the total environment steps of the run when a training step begins."""
    return self.learning_starts + training_step * self._ratio.denominator // self._ratio.numerator

  def training_step(self, environment_steps: tf.Tensor) -> tf.Tensor:
    """Returns the training step after a number of environment steps: int64 [] -> int64 []."""
    return self._training_steps(tf.maximum(environment_steps - self.learning_starts, 0))

  def training_steps_of(self, total_environment_steps: int) -> int:
    """Returns the training steps of a run with a total of environment steps.

    Raises:
      UsageError: the run would end before the first training step.
    """
    if total_environment_steps <= self.learning_starts:
      raise UsageError("training_steps.total_environment_steps = "
                       f"{total_environment_steps}: training begins after "
                       f"RateLimiter.learning_starts = {self.learning_starts} of them; use more")
    return max(1, self._training_steps(total_environment_steps - self.learning_starts))

  def _training_steps(self, inserts: _Count) -> _Count:
    return inserts * self._ratio.numerator // self._ratio.denominator


@gin.configurable
def training_steps(total_environment_steps: int = gin.REQUIRED, on_policy: bool = False) -> int:
  """Returns the training steps of an agent's run, for `train.steps = @training_steps()`.

  Args:
    total_environment_steps: environment steps of the run, see `RateLimiter`. They are rounded up to
      whole calls of `train.steps_per_call` training steps, or to whole rollouts.
    on_policy: whether the agent learns from `Rollouts`, whose settings then determine the number of
      training steps. Otherwise the `RateLimiter` does.

  Raises:
    UsageError: the run would end before the first training step.
  """
  _run.is_on_policy = on_policy
  if on_policy:
    above_zero("training_steps", total_environment_steps=total_environment_steps)
    return _training_steps_of_rollouts(total_environment_steps)
  steps = RateLimiter().training_steps_of(total_environment_steps)
  each = operative.value_of("replicator.train", "steps_per_call")
  return -(-steps // each) * each


def _training_steps_of_rollouts(total: int) -> int:
  """Returns the training steps on rollouts with a total of environment steps."""
  length, epochs = (operative.value_of("Rollouts", name) for name in ("length", "epochs"))
  if (environments := _run.environments) is None:
    raise UsageError("training_steps.on_policy = True: the environments are known only within "
                     "agents.train; set train.steps = 10_000, for example")
  steps = length * environments.number  # Decisions of a rollout.
  rollouts = -(-total // (steps * environments.frames_per_step))
  return rollouts * epochs * steps // operative.value_of("replicator.train", "global_batch_size")


@dataclasses.dataclass
class _Run:
  """The agent's run in this process."""

  environments: Environments | None = None
  is_on_policy: bool | None = None  # As in the last `training_steps`; None before a call.


_run = _Run()


@contextlib.contextmanager
def acting_in(environments: Environments) -> Iterator[None]:
  """Makes `training_steps` use these environments, in a context."""
  _run.environments, _run.is_on_policy = environments, None
  try:
    yield
  finally:
    _run.environments, _run.is_on_policy = None, None


def check_on_policy(has_rollouts: bool) -> None:
  """Raises a UsageError if `training_steps.on_policy` does not match the agent."""
  if _run.is_on_policy is not None and _run.is_on_policy != has_rollouts:
    kind = "Rollouts" if has_rollouts else "a replay"
    raise UsageError(f"training_steps.on_policy = {_run.is_on_policy}: this agent learns from "
                     f"{kind}; use {has_rollouts}")
