"""The position of a run: a checkpoint keeps it besides the variables, and restores it."""

import contextlib
import math
from collections.abc import Collection

import numpy as np

from replicator.checkpoints.checkpoint import Checkpoints
from replicator.divergence.recovery import Diverged, Recovery
from replicator.errors import RunFailed, UsageError
from replicator.strategies.replicator import Replicator
from replicator.training.patience import Patience


class RunningMeans:
  """Means of scalars over the steps that returned them, which continue from an earlier `state`."""

  def __init__(self, state: dict | None = None):
    self._sums: dict[str, float] = dict(state["sums"]) if state else {}
    self._counts: dict[str, int] = {}
    if state:  # Earlier versions kept one count.
      self._counts = state.get("counts") or dict.fromkeys(self._sums, state.get("count", 0))

  def add(self, values: dict[str, np.ndarray], counters: Collection[str] = ()) -> None:
    """Adds the values of some steps, `{name: [steps]}`; the last one of counters is their mean."""
    for name, series in values.items():
      if name in counters:
        self._sums[name], self._counts[name] = float(series[-1]), 1
        continue
      self._sums[name] = self._sums.get(name, 0.0) + float(np.sum(series, dtype=np.float64))
      self._counts[name] = self._counts.get(name, 0) + len(series)

  def take(self) -> dict[str, float]:
    """Returns the means, and starts over."""
    means = {name: total / self._counts[name] for name, total in self._sums.items()}
    self._sums, self._counts = {}, {}
    return means

  def state(self) -> dict:
    """The sums and counts that a checkpoint keeps, as JSON."""
    return {"sums": dict(self._sums), "counts": dict(self._counts)}


class RunState:
  """The position of a run, which begins at its newest checkpoint, if there is one.

  Raises a UsageError if the checkpoints do not fit the step, workers restored different steps, or
  the data had another number of `examples`, or another `digest` (see `inputs.digest_of`), when the
  checkpoints were saved: each step would get others.
  """

  def __init__(self, replicator: Replicator, checkpoints: Checkpoints, recovery: Recovery,
               patience: Patience, examples: int | None = None, digest: str | None = None):
    self._replicator = replicator
    self._checkpoints = checkpoints
    self._recovery = recovery
    self._patience = patience
    self._examples = examples
    self._digest = digest
    self.step = 0
    self.seconds = 0.0
    self.means = RunningMeans()  # Since the last log point.
    self.saved_step: int | None = None  # The last one that this process saved.
    self._restore()

  def save(self, scalars: dict[str, float], due: bool) -> None:
    """Saves a checkpoint; `scalars` are those logged at this step. See `Checkpoints.save`."""
    self._checkpoints.save(
        self.step, {"seconds": self.seconds, "window": self.means.state(),
                    "examples": self._examples, "digest": self._digest,
                    **self._recovery.state(), **self._patience.state()}, scalars, due)
    self.saved_step = self.step

  def evaluated(self, scalars: dict[str, float]) -> None:
    """Tells the patience of every worker what the chief, which has all `scalars`, has found."""
    value = scalars.get(self._patience.metric, math.nan)
    self._patience.saw(self.step, float(self._replicator.by_worker(value)[0]))

  def roll_back(self, diverged: Diverged) -> str:
    """Returns to the last checkpoint on all workers; the result is one line about it.

    It skips a checkpoint that a stop or an end has saved, since a run that goes on has none there,
    unless there is no other.

    Raises a RunFailed if the guard says that the run must stop instead.
    """
    with contextlib.suppress(RunFailed):  # It would hide the divergence.
      self._checkpoints.wait()
    # Waits until the chief has written its checkpoint, and every worker its failed batch. Else a
    # worker could restore an older checkpoint, or end the run while others still write.
    self._replicator.by_worker(self.step)
    self._recovery.check_may_roll_back(diverged)
    counted = self._recovery.state()
    if not (self._restore(due_only=True) or self._restore()):
      raise RunFailed(f"{diverged}; no checkpoint was saved before")
    return self._recovery.roll_back(diverged, self.step, counted)

  def _restore(self, due_only: bool = False) -> bool:
    """Continues at the newest checkpoint; False if there is none."""
    state = self._checkpoints.restore(due_only)
    if state is not None:
      self.step, self.seconds = state["step"], state["seconds"]
      self.means = RunningMeans(state["window"])
      self._check_data(state.get("examples"), state.get("digest"))
      self._recovery.restore(state)
      self._patience.restore(state)
    steps = self._replicator.by_worker(self.step)
    if len({*steps}) > 1:
      raise UsageError(f"--workdir: the workers restored the steps {', '.join(map(str, steps))}; "
                       "all must see the same workdir, on a file system that they share")
    return state is not None

  def _check_data(self, examples: int | None, digest: str | None) -> None:
    if examples is not None and self._examples not in (None, examples):
      what = f"with {examples:,} examples, and the data has {self._examples:,}"
    elif digest is not None and self._digest not in (None, digest):
      what = ("with other data: as many examples, but not the same names, sizes and labels, or not "
              "in the same order")
    else:
      return
    self._checkpoints.refuse(
        f"--workdir: the run was saved {what}, so its steps would get others",
        "put the data back as it was, write another --workdir, or go on with this data by "
        "--allow_partial_restore")

