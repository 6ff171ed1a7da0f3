"""The rate limiter: how fast actors fill the replay, and how fast the learner samples from it."""

import dataclasses
import math

import gin

import replicator


@gin.configurable
@dataclasses.dataclass(frozen=True)
class RateLimiter:
  """Ties environment steps to training steps.

  Attributes:
    start: environment steps before the first training step.
    samples_per_insert: how often each transition is sampled, on average.
  """

  start: int = 1000
  samples_per_insert: float = 32.0

  def environment_steps(self, training_step: int) -> int:
    """Environment steps of the run, over all environments, when a training step begins."""
    drawn = training_step * replicator.batch_size()
    return self.start + math.floor(drawn / self.samples_per_insert)
