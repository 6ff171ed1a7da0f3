"""Compares the first step of a resumed run with the step that first followed its checkpoint.

An exactly resumed run repeats that step, so its scalars must be the same, bit for bit. The file
`next_steps.json` of a workdir holds the scalars of the step after each checkpoint.
"""

import hashlib
import json

from replicator import atomic
from replicator.training.checkpoints import store
from replicator.training.checks.diagnosis import LOOSE
from replicator.training.run import Run
from replicator.training.workdir import reader

import keras
import numpy as np

FILE = "next_steps.json"
_ROUNDING = ("strategy", "num_replicas", "num_workers", "precision", "jit_compile", "versions",
             "machine", "environment")
"""Facts of a run that may change rounding if they change."""


class ResumedStep:
  """The scalars of the step after each checkpoint, with which a first step is compared.

  `facts` come from `run.json`.
  """

  def __init__(self, run: Run, facts: dict):
    self._run, self._path = run, run.workdir / FILE
    self._facts = hashlib.sha256(
        json.dumps([facts.get(name) for name in _ROUNDING]).encode()).hexdigest()
    self._rows: dict[str, dict] = {}  # By the step of the checkpoint.
    if run.step and self._path.exists():
      self._rows = reader.object_in(self._path.read_text())
    self._began = run.step
    self._before = self._rows.get(str(run.step))
    self._first: dict[str, float] | None = None
    self._saved: int | None = None

  def saved(self, step: int) -> None:
    """Records that the run saves a checkpoint, which replaces later ones."""
    self._saved = step
    self._rows = {each: row for each, row in self._rows.items() if int(each) < step}

  def finished(self, step: int, values: dict[str, np.ndarray]) -> None:
    """Records the scalars of a finished call that began at `step`: `{name: [steps]}`."""
    if step != self._saved and self._first is not None:
      return
    scalars = {name: float(series[0]) for name, series in values.items()}
    self._first = self._first or scalars
    if step == self._saved:
      self._saved = None
      self._keep(step, scalars)

  def tell(self, changes: list[str]) -> None:
    """Reports whether the first step is the same as before; `changes` may explain a difference."""
    before, now = self._before, self._first or {}
    names = [name for name in now if before and name in before["scalars"]]
    if not before or not names:
      return
    was = {name: before["scalars"][name] for name in names}
    largest, worst = max((_difference(was[name], now[name]), name) for name in names)
    is_same = self._run.is_exact and not changes and before["facts"] == self._facts
    how = "bit for bit" if largest == 0 else f"{largest:.0e}"
    line = f"{worst} {now[worst]:.9g}, was {was[worst]:.9g}"
    if largest <= (0.0 if is_same else LOOSE[keras.config.dtype_policy().name]):
      self._run.say(f"first step: same as before the restart, {how}")
    elif changes:
      self._run.say(f"first step: not the same as before the restart and its changes: {line}")
      self._keep(self._began, now)
    else:
      self._run.warn(f"the first step differs from the one that followed this checkpoint before: "
                     f"{line}; some state is not saved, or the data has changed; to find it: "
                     "replicator doctor --check_resume")

  def _keep(self, step: int, scalars: dict[str, float]) -> None:
    there = store.steps_of(self._run.workdir / "checkpoints")
    self._rows = {each: row for each, row in self._rows.items() if int(each) in there}
    self._rows[str(step)] = {"facts": self._facts, "scalars": scalars}
    atomic.write_whole(self._path, json.dumps(self._rows))


def _difference(before: float, now: float) -> float:
  """Returns the relative difference of two numbers; 0 if they are equal or both NaN."""
  if before == now or (np.isnan(before) and np.isnan(now)):
    return 0.0
  relative = abs(now - before) / max(abs(before), abs(now))
  return float("inf") if np.isnan(relative) else relative
