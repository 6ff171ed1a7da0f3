"""The position of a run, which a checkpoint keeps along with the variables."""

import contextlib
from collections.abc import Collection

from replicator.errors import RunFailed, UsageError
from replicator.training import from_step
from replicator.training.checkpoints import partial
from replicator.training.divergence.rollback import Diverged, Rollback
from replicator.training.inputs.inputs import digest_of, num_examples
from replicator.training.run import Run
from replicator.training.workdir import places

import numpy as np


class RunningMeans:
  """Running means of scalars over the steps that returned them, continued from a `state` if any."""

  def __init__(self, state: dict | None = None):
    self._sums: dict[str, float] = dict(state["sums"]) if state else {}
    self._counts: dict[str, int] = dict(state["counts"]) if state else {}

  def add(self, values: dict[str, np.ndarray], counters: Collection[str] = ()) -> None:
    """Adds the values of some steps, `{name: [steps]}`; a counter keeps only its last value."""
    for name, series in values.items():
      if name in counters:
        self._sums[name], self._counts[name] = float(series[-1]), 1
        continue
      self._sums[name] = self._sums.get(name, 0.0) + float(np.sum(series, dtype=np.float64))
      self._counts[name] = self._counts.get(name, 0) + len(series)

  def take(self) -> dict[str, float]:
    """Returns the means and starts over."""
    means = {name: total / self._counts[name] for name, total in self._sums.items()}
    self._sums, self._counts = {}, {}
    return means

  def state(self) -> dict:
    """Returns the sums and counts that a checkpoint keeps, as JSON."""
    return {"sums": dict(self._sums), "counts": dict(self._counts)}


class Position:
  """The position of a run, which it saves and restores.

  A run begins at its newest checkpoint, if there is one, or goes back to an earlier one (see
  `from_step`). Raises a UsageError if the checkpoints do not fit the step, if workers restored
  different steps, or if the number or the digest of the examples (see `inputs.digest_of`) has
  changed since they were saved.
  """

  def __init__(self, run: Run, rollback: Rollback):
    self.run = run
    self.rollback = rollback
    self._examples, self._digest = num_examples(run.inputs), digest_of(run.inputs)
    self.means = RunningMeans()  # Since the last log point.
    self.saved_step: int | None = None  # The last step that this process saved.
    step = from_step.wanted(run)
    self._restore(step=step)
    run.went_back = step is not None

  def save(self, due: bool) -> None:
    """Saves a checkpoint, with the scalars logged at this step; see `Saver.save`."""
    run = self.run
    self.run.saver.save(
        run.step, {"seconds": run.seconds, "window": self.means.state(),
                   "examples": self._examples, "digest": self._digest, **self.rollback.state()},
        run.writer.line(run.step), due)
    self.saved_step = run.step

  def check_sound(self) -> None:
    """Raises a RunFailed instead of saving if the numbers of this step are not finite."""
    if not self.run.guard.is_sound:
      with contextlib.suppress(RunFailed):  # It would hide the cause.
        self.run.saver.wait()
      raise RunFailed(f"stopped at step {self.run.step}, which is not saved, since its numbers are "
                      f"not finite; {self.rollback.last_checkpoint()}")

  def roll_back(self, diverged: Diverged) -> str:
    """Rolls all workers back to the last checkpoint; returns one line about it.

    Skips checkpoints that were saved only because the run stopped or ended, if there is any other,
    since an uninterrupted run does not have them.

    Raises a RunFailed if the guard stops the run instead, or if it cannot continue there.
    """
    with contextlib.suppress(RunFailed):  # It would hide the divergence.
      self.run.saver.wait()
    if self.run.is_chief:
      places.refresh(self.run.workdir)  # Workers with copies of the workdir read it from there.
    # Wait until the chief has written its checkpoint, and every worker its failed batch. Otherwise
    # a worker could restore an older checkpoint, or end the run while others still write.
    self.run.replicator.by_worker(self.run.step)
    self.rollback.check_may_roll_back(diverged)
    counted = self.rollback.state()
    if not (self._restore(due_only=True) or self._restore()):
      raise RunFailed(f"{diverged}; there is no earlier checkpoint")
    line = self.rollback.roll_back(diverged, self.run.step, counted)
    if why := self.run.schedule.missed(self.run.step):
      raise RunFailed(f"{diverged}; {why}") from None
    return line

  def _restore(self, due_only: bool = False, step: int | None = None) -> bool:
    """Restores a checkpoint, the newest by default; returns False if there is none."""
    run = self.run
    state = run.saver.restore(due_only, step)
    if state is not None:
      run.step, run.seconds = state["step"], state["seconds"]
      run.saved_step = run.step
      self.means = RunningMeans(state["window"])
      self._check_data(state["examples"], state["digest"])
      self.rollback.restore(state)
    steps = run.replicator.by_worker(run.step)
    if len({*steps}) > 1:
      raise UsageError("--workdir: the workers restored different steps, "
                       f"{', '.join(map(str, steps))}; all must see the same workdir, on a shared "
                       "file system")
    return state is not None

  def _check_data(self, examples: int | None, digest: str | None) -> None:
    if examples is not None and self._examples not in (None, examples):
      what = f"with {examples:,} examples, but the data has {self._examples:,}"
    elif digest is not None and self._digest not in (None, digest):
      what = ("with different data: the number of examples is the same, but not their names, sizes "
              "and labels, or not their order")
    else:
      return
    partial.refuse(
        f"--workdir: the run was saved {what}, so its steps would get different ones",
        "restore the old data, choose another --workdir, or continue with this data with "
        "--allow_partial_restore")
