"""Checks that an interrupted run equals an uninterrupted one bit for bit.

Three processes train and save every step: one without interruption, one that ends halfway, and one
that resumes from there. A difference before the interruption is not caused by resuming.
"""

import dataclasses
import json
import pathlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from replicator.app import config
from replicator.console.formatting import listed
from replicator.doctor.experiment import bound, recorded_by
from replicator.doctor.resume_recording import CALLBACKS, ResumeRecording
from replicator.doctor.verdict import AGREES, DIFFERS, FAILED, CheckResult
from replicator.errors import UsageError
from replicator.training.checkpoints import store
from replicator.training.workdir.reader import TIMES

import numpy as np

SCALAR, VARIABLE = "scalar", "variable"


Trajectory = Mapping[int, Mapping[tuple[str, str], Any]]
"""The values of a run by step, kind and name: logged scalars, then saved variables."""


class SavedSteps(Mapping[int, Mapping[tuple[str, str], Any]]):
  """The trajectory of a run that logged and saved some steps.

  Steps are read on demand, since an agent's replay buffer may take gigabytes.
  """

  def __init__(self, workdir: pathlib.Path, steps: Sequence[int]):
    rows = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    self._workdir, self._rows = workdir, {step: {} for step in steps} | {
        row["step"]: row for row in rows if row["step"] in steps}

  def __getitem__(self, step: int) -> Mapping[tuple[str, str], Any]:
    saved = store.read(self._workdir / "checkpoints", step)
    return {**{(SCALAR, name): value for name, value in self._rows[step].items()
               if name not in ("step", *TIMES)},
            **{(VARIABLE, path): value for path, value in saved.items()}}

  def __iter__(self) -> Iterator[int]:
    return iter(self._rows)

  def __len__(self) -> int:
    return len(self._rows)


@dataclasses.dataclass(frozen=True)
class Mismatch:
  """The first quantity that differs between two trajectories."""

  step: int
  kind: str  # `SCALAR` or `VARIABLE`.
  name: str
  words: str  # How it differs.


def first_mismatch(one: Trajectory, other: Trajectory) -> Mismatch | None:
  """Returns the first mismatch, scalars before variables within a step; None if there is none."""
  for step, a in one.items():
    b = other[step]
    for kind, name in {**a, **b}:
      words = _difference(kind, a.get((kind, name)), b.get((kind, name)))
      if words:
        return Mismatch(step, kind, name, words)
  return None


def _difference(kind: str, a: Any, b: Any) -> str:
  """Describes how a value differs; '' if it does not."""
  if kind == SCALAR:
    return f"{b} instead of {a}" if a != b else ""
  if a is None or b is None:
    return "is saved in only one of the runs"
  if a.dtype != b.dtype or a.shape != b.shape:
    return f"{b.dtype} {list(b.shape)} instead of {a.dtype} {list(a.shape)}"
  if a.tobytes() == b.tobytes():
    return ""
  count = int(np.sum(a != b))
  first = np.flatnonzero(a != b)[:1]  # Empty if two NaNs differ in their bits.
  return (f"{count} of {a.size} numbers differ, the first is {b.flat[first]} instead of "
          f"{a.flat[first]}")


# ---- The likely cause ---------------------------------------------------------------------------


def cause_before(first: Mismatch, unbroken: ResumeRecording, again: ResumeRecording,
                 deterministic: bool = True) -> str:
  """Explains why two processes from step 0 differ; `deterministic` is the setting of `train`."""
  if not deterministic:
    return ("train.deterministic = False: operations may sum in a different order each time; set "
            "it to True")
  step = _first_other_batch(first.step, unbroken, again)
  if step:
    return (f"the input: each process gets a different batch at step {step}; seed each shuffle "
            "and draw, for example with the seed of the InputContext, not with an unseeded "
            "np.random.default_rng() or the time, and sort the entries of a folder or a set")
  return ("two processes with the same seed differ: the step or its weights use an unseeded "
          "np.random.default_rng(), the time or the order of a set; draw with replicator.random")


def cause_after(first: Mismatch, saved: int, unbroken: ResumeRecording, again: ResumeRecording,
                resumed: ResumeRecording) -> str:
  """Explains why a run differs after it was saved at step `saved` and resumed.

  `again` is the recording of its beginning, up to that step.
  """
  step = _first_other_batch(first.step, unbroken, resumed)
  if step:
    return _cause_in_input(step, saved, unbroken, resumed)
  causes = []
  if lost := lost_values(unbroken, again, resumed, saved + 1):
    causes.append("Python values that differ after the resume and are not in the checkpoint: "
                  f"{listed(lost)}; keep them in tf.Variables that are attributes of the step, or, "
                  "in an environment, make them depend only on the seed of its episode")
  elif unbroken.changed:
    causes.append("Python values that change from step to step and are not in the checkpoint: "
                  f"{listed(unbroken.changed)}; keep them in tf.Variables that are attributes of "
                  "the step")
  if unbroken.evidence.stateful_draws:
    causes.append(f"{listed(unbroken.evidence.stateful_draws)}: the state of its generator is "
                  "not in the checkpoint; draw with replicator.random")
  if unbroken.evidence.python_code and not causes:
    causes.append(f"{listed(unbroken.evidence.python_code)}: its state in Python is not in the "
                  "checkpoint; compute with TensorFlow, and keep the state in tf.Variables")
  return "; or ".join(causes) or (
      "something the step depends on is not in the checkpoint: a Python value, a file, the time; "
      "keep everything that changes in tf.Variables that are attributes of the step")


def _cause_in_input(step: int, saved: int, unbroken: ResumeRecording, resumed: ResumeRecording
                    ) -> str:
  starts_over = unbroken.batches.get(step - saved) == resumed.batches[step]
  what = (f"the input starts over: step {step} gets the batch of step {step - saved}"
          if starts_over else
          f"the input: step {step} gets a different batch than in the uninterrupted run")
  if unbroken.has_source:
    return (f"{what}; load(index) must depend only on the index: use no counter or np.random, but "
            "tf.random.stateless_uniform with the index in its seed")
  inputs = [path for path in unbroken.changed if path.startswith("inputs")]
  return (f"{what}; the data set must be the same every time it is created, since a resumed run "
          "skips to its step: seed its shuffles, and keep no position outside of it"
          + (f" (changed: {listed(inputs)})" if inputs else ""))


def _first_other_batch(until: int, one: ResumeRecording, other: ResumeRecording) -> int | None:
  return next((step for step in sorted(other.batches) if step <= until
               and other.batches[step] != one.batches.get(step)), None)


def lost_values(unbroken: ResumeRecording, again: ResumeRecording, resumed: ResumeRecording,
                step: int | None = None) -> list[str]:
  """Lists the Python values that differ after a resume, at one step or any.

  Skips values that also differ between two processes from step 0, and values that exist in only
  one of the recordings, such as those of objects created later.
  """
  def others(other: ResumeRecording, at: int | None) -> list[str]:
    return [path for number, values in other.python.items() if at in (None, number)
            for path, digest in values.items()
            if unbroken.python.get(number, {}).get(path, digest) != digest]
  always = set(others(again, None))
  return list(dict.fromkeys(path for path in others(resumed, step) if path not in always))


# ---- The processes ------------------------------------------------------------------------------


class ResumeCheck:
  """A comparison of runs with and without an interruption in the middle.

  Its processes get the doctor's command line `words`. Raises a UsageError if runs under the
  configured strategy are never reproducible.
  """

  def __init__(self, words: Sequence[str], files: Sequence[str], params: Sequence[str], steps: int):
    self._words = words
    self._steps = steps
    self._saved = steps // 2
    config.parse(files, params)
    self._strategy = bound("Replicator.strategy", "default")
    if self._strategy == "parameter_server":
      raise UsageError("Replicator.strategy = 'parameter_server': its workers overtake each other, "
                       "so no two runs are the same; choose another strategy")

  def results(self) -> Iterator[CheckResult]:
    """Yields each row of the table as soon as it is known."""
    with tempfile.TemporaryDirectory(prefix="replicator-") as name:
      folder = pathlib.Path(name)
      try:
        unbroken = self._train(folder / "unbroken", self._steps)
        again = self._train(folder / "resumed", self._saved)
        resumed = self._train(folder / "resumed", self._steps)
      except UsageError as error:
        yield CheckResult("training", FAILED, str(error))
        return
      every = range(1, self._steps + 1)
      one = SavedSteps(folder / "unbroken", every)
      first = first_mismatch(one, SavedSteps(folder / "resumed", every))
      kinds = [kind for kind, _ in one[self._steps]]
    for check, steps in (("in a new process", every[:self._saved]),
                         ("after the resume", every[self._saved:])):
      where = f"steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}"
      if first and first.step in steps:
        cause = (cause_before(first, unbroken, again, bound("train.deterministic", True))
                 if first.step <= self._saved else
                 cause_after(first, self._saved, unbroken, again, resumed))
        label = unbroken.evidence.labels.get(first.name)
        yield CheckResult(check, DIFFERS, where, (
            f"first: {first.kind} '{first.name}'{f' ({label})' if label else ''} at step "
            f"{first.step}: {first.words}", f"likely cause: {cause}"))
        return
      yield CheckResult(check, AGREES, f"{where}: {kinds.count(VARIABLE)} variables and "
                        f"{kinds.count(SCALAR)} scalars of each, bit for bit")
    if lost := [path for path in lost_values(unbroken, again, resumed)
                if path.startswith(CALLBACKS)]:
      yield CheckResult("callbacks", DIFFERS, f"{listed(lost)} after the resume", (
          "likely cause: a Python value is not in the checkpoint; make the callback a tf.Module "
          "too, and keep the value in a tf.Variable",))

  def _train(self, workdir: pathlib.Path, until: int) -> ResumeRecording:
    """Trains in new processes, from the newest step of `workdir` until step `until` is saved."""
    return recorded_by([*self._words, f"--train_in={workdir}", f"--train_until={until}"],
                       2 if self._strategy == "multi_worker_mirrored" else 1)
