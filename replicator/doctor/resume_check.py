"""Whether a run that was interrupted is, bit for bit, the run that was not, and why not.

`python -m replicator.doctor --check_resume` asks. Three processes train: one without a break, one
that ends half-way, and one that goes on from there. Each saves every step. What differs before the
interruption is no fault of the resume.
"""

import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence

import gin
import numpy as np

from replicator.app import config
from replicator.checkpoints import checkpoint
from replicator.doctor import resume_recording
from replicator.doctor.replica_check import AGREES, DIFFERS, FAILED, Row, error_in
from replicator.doctor.resume_recording import Watched
from replicator.errors import UsageError

SCALAR, VARIABLE = "scalar", "variable"
WORKERS = {"multi_worker_mirrored": 2}
"""How many processes a strategy is examined with."""


@dataclasses.dataclass(frozen=True)
class Course:
  """What a workdir tells of its steps.

  Attributes:
    scalars: by step and name, as `metrics.jsonl` has them.
    variables: by step and path.
  """

  scalars: Mapping[int, Mapping[str, object]]
  variables: Mapping[int, Mapping[str, np.ndarray]]


def read(workdir: pathlib.Path, steps: Sequence[int]) -> Course:
  """What a run left of some steps, each of which it logged and saved."""
  lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
  scalars = {row["step"]: {name: value for name, value in row.items()
                           if name not in ("step", "seconds")} for row in lines}
  return Course({step: scalars.get(step, {}) for step in steps},
                {step: checkpoint.read(workdir / "checkpoints", step) for step in steps})


@dataclasses.dataclass(frozen=True)
class Difference:
  """The first thing that is not the same in two courses.

  Attributes:
    step: of which it is.
    kind: `SCALAR` or `VARIABLE`.
    name: of the scalar, or the path of the variable.
    words: how far it differs.
  """

  step: int
  kind: str
  name: str
  words: str


def first_difference(one: Course, other: Course, steps: Sequence[int]) -> Difference | None:
  """Step by step, scalars before variables, which were computed later; None if all is equal."""
  for step in steps:
    a, b = one.scalars[step], other.scalars[step]
    for name in {**a, **b}:
      if a.get(name) != b.get(name):
        return Difference(step, SCALAR, name, f"{b.get(name)} instead of {a.get(name)}")
    mine, others = one.variables[step], other.variables[step]
    for path in {**mine, **others}:
      words = _of_values(mine.get(path), others.get(path))
      if words:
        return Difference(step, VARIABLE, path, words)
  return None


def _of_values(a: np.ndarray | None, b: np.ndarray | None) -> str:
  if a is None or b is None:
    return "is saved in one of the runs alone"
  if a.dtype != b.dtype or a.shape != b.shape:
    return f"{b.dtype} {list(b.shape)} instead of {a.dtype} {list(a.shape)}"
  if a.tobytes() == b.tobytes():
    return ""
  count = int(np.sum(a != b))
  first = np.flatnonzero(a != b)[:1]  # None where two NaNs differ in their bits.
  return (f"{count} of {a.size} numbers differ, the first is {b.flat[first]} instead of "
          f"{a.flat[first]}")


# ---- The likely cause ---------------------------------------------------------------------------


def cause_before(first: Difference, unbroken: Watched, again: Watched,
                 deterministic: bool = True) -> str:
  """Why two processes differ that both began at step 0.

  Args:
    first: what differs first.
    unbroken: what the one process saw.
    again: what the other saw.
    deterministic: whether TensorFlow's operations were.
  """
  if not deterministic:
    return ("train.deterministic = False: operations may add up in another order each time; set "
            "it to True")
  step = _first_other_batch(first.step, unbroken, again)
  if step:
    return (f"the input: the batch of step {step} is another one in each process; draw and shuffle "
            "with the seed of the InputContext, not with an unseeded np.random.default_rng() or "
            "the time, and sort what a folder or a set lists")
  return ("two processes with the same seed differ: the step or its weights use an unseeded "
          "np.random.default_rng(), the time or the order of a set; draw with replicator.random")


def cause_after(first: Difference, saved: int, unbroken: Watched, resumed: Watched) -> str:
  """Why a run differs after it was saved at a step and resumed."""
  step = _first_other_batch(first.step, unbroken, resumed)
  if step:
    return _cause_in_input(step, saved, unbroken, resumed)
  causes = []
  if unbroken.changed:
    causes.append(f"Python values that change from step to step and are in no checkpoint: "
                  f"{_few(unbroken.changed)}; keep them in tf.Variables that are attributes of "
                  "the step")
  if unbroken.draws:
    causes.append(f"{_few(unbroken.draws)}: the state of its generator is in no checkpoint; draw "
                  "with replicator.random")
  if unbroken.python_code and not causes:
    causes.append(f"{_few(unbroken.python_code)}: what it keeps in Python is in no checkpoint; "
                  "compute with TensorFlow, and keep it in tf.Variables")
  return "; or ".join(causes) or (
      "something the step depends on is in no checkpoint: a Python value, a file, the time; keep "
      "all that changes in tf.Variables that are attributes of the step")


def _cause_in_input(step: int, saved: int, unbroken: Watched, resumed: Watched) -> str:
  batch = resumed.batches.get(step)
  begins = [earlier for earlier, digest in unbroken.batches.items()
            if digest == batch and earlier == step - saved]
  what = (f"the input begins anew: step {step} gets the batch of step {begins[0]}" if begins else
          f"the input: step {step} gets another batch than in the unbroken run")
  if unbroken.source == "source":
    return (f"{what}; load(index) must depend on the index alone: no counter, no np.random, and "
            "tf.random.stateless_uniform with the index in its seed")
  state = f" (changed: {_few(inputs)})" if (inputs := [
      path for path in unbroken.changed if path.startswith("inputs")]) else ""
  return (f"{what}; the data set must be the same whenever it is made, since a resumed run skips "
          f"to its step: seed its shuffles, and keep no position outside of it{state}")


def _first_other_batch(until: int, one: Watched, other: Watched) -> int | None:
  return next((step for step in sorted(other.batches) if step <= until
               and other.batches[step] != one.batches.get(step)), None)


def _few(names: Sequence[str]) -> str:
  return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


# ---- The processes ------------------------------------------------------------------------------


class ResumeCheck:
  """Trains with and without an interruption, and compares.

  Args:
    words: the doctor's command line, which its processes get too.
    files: gin files.
    params: gin bindings.
    steps: how many are trained; the interruption is in the middle.
  """

  def __init__(self, words: Sequence[str], files: Sequence[str], params: Sequence[str], steps: int):
    self._words = words
    self._steps = steps
    self._saved = steps // 2
    config.parse(files, params)
    self.strategy = _bound("Replicator.strategy", "default")
    if self.strategy == "parameter_server":
      raise UsageError("Replicator.strategy = 'parameter_server': its workers overtake each other, "
                       "so that no two runs are the same, broken or not; name another strategy")
    self._workers = WORKERS.get(self.strategy, 1)

  def rows(self) -> Iterator[Row]:
    """The table, a row when it is known."""
    before, after = range(1, self._saved + 1), range(self._saved + 1, self._steps + 1)
    with tempfile.TemporaryDirectory(prefix="replicator-") as name:
      folder = pathlib.Path(name)
      started = time.monotonic()
      try:
        unbroken = self._train(folder / "unbroken", self._steps)
        again = self._train(folder / "resumed", self._saved)
        resumed = self._train(folder / "resumed", self._steps)
      except UsageError as error:
        yield Row("training", FAILED, str(error))
        return
      yield Row("training", "done", f"'{unbroken.strategy}' on {unbroken.replicas} replica"
                f"{'s' * (unbroken.replicas > 1)}, batches of {unbroken.batch_size}; 3 runs in "
                f"{time.monotonic() - started:.0f} s")
      one, other = (read(folder / run, [*before, *after]) for run in ("unbroken", "resumed"))
    first = first_difference(one, other, before)
    yield self._row("in a new process", before, one, first, unbroken.labels,
                    cause_before(first, unbroken, again, _bound("train.deterministic", True))
                    if first else "")
    if first is None:
      first = first_difference(one, other, after)
      yield self._row("after the resume", after, one, first, unbroken.labels,
                      cause_after(first, self._saved, unbroken, resumed) if first else "")

  def _row(self, name: str, steps: range, course: Course, first: Difference | None,
           labels: Mapping[str, str], cause: str) -> Row:
    where = f"steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}"
    if first is None:
      step = steps[-1]
      return Row(name, AGREES, f"{where}: {len(course.variables[step])} variables and "
                 f"{len(course.scalars[step])} scalars of each, bit for bit")
    label = f" ({labels[first.name]})" if first.name in labels else ""
    return Row(name, DIFFERS, where, (
        f"first: {first.kind} '{first.name}'{label} at step {first.step}: {first.words}",
        f"likely cause: {cause}"))

  def _train(self, workdir: pathlib.Path, until: int) -> Watched:
    """Trains in new processes, from where `workdir` is, until a step is saved."""
    path = workdir.with_name(f"{workdir.name}-{until}.json")
    command = [sys.executable, "-m", "replicator.doctor", *self._words, f"--train_in={workdir}",
               f"--train_until={until}", f"--record={path}"]
    if self._workers > 1:
      command = [sys.executable, "-m", "replicator.launch", f"--workers={self._workers}", "--",
                 *command]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
      raise UsageError(error_in(done.stdout + done.stderr))
    return resume_recording.load(path)


def train(main, files: Sequence[str], params: Sequence[str], workdir: str, until: int, path: str,
          steps: int) -> None:
  """The part of one process: trains an experiment until a step is saved.

  Raises:
    UsageError: as `watching.train`, or the experiment.
  """
  config.parse(files, params)
  total = [] if _bound("train.steps", None) else [f"train.steps = {steps}"]
  config.parse(files, [
      *params, *total, "train.steps_per_call = 1", "train.log_every = 1", "train.eval_every = 0",
      "train.checkpoint_every = 1", f"Checkpoints.keep_last = {steps}",
      "Checkpoints.keep_best = None"])
  resume_recording.train(main, workdir, until, path)


def _bound(name: str, otherwise):
  """What the configuration that was read binds to a parameter."""
  try:
    return gin.query_parameter(name)
  except ValueError:
    return otherwise
