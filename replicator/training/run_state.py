"""How far a run has come: what a checkpoint keeps besides the variables, saved and restored."""

import contextlib

import tensorflow as tf

from replicator.checkpoints.checkpoint import Checkpoints
from replicator.errors import RunFailed, UsageError
from replicator.step import collectives
from replicator.strategies.replicator import Replicator
from replicator.training.recovery import Diverged, Recovery
from replicator.training.scalars import RunningMeans


class RunState:
  """The position of a run, which begins at its newest checkpoint, if there is one.

  Args:
    replicator: runs the step.
    checkpoints: of the run.
    recovery: counts the rollbacks, which a checkpoint keeps, too.

  Attributes:
    step: how many steps are done.
    seconds: how long they took.
    means: the means of the scalars since the last log point.
    saved_step: the step of the last checkpoint of this process, or None.

  Raises:
    UsageError: the checkpoints do not fit the step, or the workers restored different steps.
  """

  def __init__(self, replicator: Replicator, checkpoints: Checkpoints, recovery: Recovery):
    self._replicator = replicator
    self._checkpoints = checkpoints
    self._recovery = recovery
    self.step = 0
    self.seconds = 0.0
    self.means = RunningMeans()
    self.saved_step: int | None = None
    self._restore()

  def save(self, scalars: dict[str, float]) -> None:
    """Saves a checkpoint; `scalars` are those logged at this step."""
    self._checkpoints.save(
        self.step, {"seconds": self.seconds, "window": self.means.state(),
                    **self._recovery.state()}, scalars)
    self.saved_step = self.step

  def roll_back(self, diverged: Diverged) -> str:
    """Returns to the last checkpoint on all workers; the result is one line about it.

    Raises:
      RunFailed: the guard says that the run must stop instead.
    """
    with contextlib.suppress(RunFailed):  # It would hide the divergence.
      self._checkpoints.wait()
    self._wait_for_other_workers()
    self._recovery.check_may_roll_back(diverged)
    counted = self._recovery.state()
    self._restore()
    return self._recovery.roll_back(diverged, self.step, counted)

  def _wait_for_other_workers(self) -> None:
    """Returns when the chief has written its checkpoint, and every worker its failed batch.

    Without it a worker could restore an older checkpoint than the chief, or end the run while
    others still write.
    """
    if self._replicator.num_pipelines > 1:
      self._replicator.run(lambda: collectives.all_sum(tf.constant(1)))

  def _restore(self) -> None:
    state = self._checkpoints.restore()
    if state is not None:
      self.step, self.seconds = state["step"], state["seconds"]
      self.means = RunningMeans(state["window"])
      self._recovery.restore(state)
    if self._replicator.num_pipelines > 1:
      mine = tf.constant(self.step, tf.int64)
      by_replica = self._replicator.run(lambda: collectives.all_gather(mine))[0].numpy()
      check_agreement(by_replica[::self._replicator.num_local_replicas].tolist())


def check_agreement(steps: list[int]) -> None:
  """Checks that all workers have restored the same step; `steps` has that of each worker.

  Raises:
    UsageError: they have not; the message names the workers that differ from most.
  """
  most = max(steps, key=lambda step: (steps.count(step), step))
  others = [f"worker {i} restored step {step}" for i, step in enumerate(steps) if step != most]
  if others:
    raise UsageError(f"--workdir: {', '.join(others)}, the others step {most}; all workers must "
                     "see the same workdir, on a file system that they share")
