"""The training loop: steps, log points, evaluations, checkpoints, and an orderly end.

    for each call of `steps_per_call` steps:
        take the next global batches, run the replica step on every replica
        every log_every steps         log the mean of each scalar since the last log point
        every eval_every steps        evaluate, draw a picture
        every checkpoint_every steps  save
        on SIGTERM or SIGINT          save and stop
"""

import collections
import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import gin
import keras
import numpy as np
import tensorflow as tf

from replicator import (
  accumulation,  # noqa: F401  (its gin name, before a configuration is locked)
  checkpoint,
  collectives,
  core,
  random,
  record,
)
from replicator import context as step_context
from replicator import inputs as inputs_lib
from replicator.errors import Preempted, UsageError, nearest
from replicator.preemption import StopSignal
from replicator.progress import Progress
from replicator.state import check_owners
from replicator.support import check_supported
from replicator.training_function import Result, TrainingFunction

PRECISIONS = ("float32", "float64", "mixed_bfloat16", "mixed_float16")


@dataclasses.dataclass
class Evaluation:
  """What an evaluation found.

  Attributes:
    scalars: logged under `eval/`.
    picture: uint8 `[h, w, 3]`, drawn to `samples/`; or None.
    method: one line that says how the scalars were found; kept in `run.json`.
  """

  scalars: dict[str, float]
  picture: np.ndarray | None = None
  method: str = ""


@gin.configurable(denylist=["make_step", "inputs", "evaluate", "workdir"])
def train(make_step: Callable[[], Callable],
          inputs: inputs_lib.Inputs | None = None,
          evaluate: Callable[[Any], Evaluation] | None = None,
          *,
          workdir: str,
          steps: int = gin.REQUIRED,
          global_batch_size: int = 64,
          seed: int = 0,
          precision: str = "float32",
          steps_per_call: int = 1,
          log_every: int = 100,
          eval_every: int = 1000,
          checkpoint_every: int = 1000) -> Any:
  """Trains a step under the strategy of the gin file, or resumes the run in `workdir`.

  Args:
    make_step: called once, in the strategy's scope; returns the step. The step is called on
      every replica with its part of a batch (with nothing if there are no `inputs`) and returns
      a dict of scalars, which are averaged over replicas and logged. What must survive a
      restart hangs off its attributes: make it a `tf.Module`.
    inputs: an example source or an input function, see `replicator.inputs`; None for a step
      that makes its own examples.
    evaluate: called with the step, before the first step and every `eval_every` steps.
    workdir: where the run leaves its files, and where it resumes from.
    steps: how many training steps.
    global_batch_size: examples of one step over all replicas.
    seed: of initial weights, random streams and the order of the examples.
    precision: a Keras dtype policy: 'float32', 'float64', 'mixed_bfloat16' or 'mixed_float16',
      under which a step must call each optimizer's `scale_loss`.
    steps_per_call: steps that run between two looks of Python at the loop.
    log_every: steps between log points.
    eval_every: steps between evaluations; 0 for none.
    checkpoint_every: steps between checkpoints; 0 for none.

  Returns:
    the trained step.

  Raises:
    UsageError: a setting cannot work; the message says which and what to write.
    Preempted: SIGTERM or SIGINT arrived; the state is saved.
  """
  _check_settings(steps=steps, steps_per_call=steps_per_call, log_every=log_every,
                  eval_every=eval_every, checkpoint_every=checkpoint_every,
                  global_batch_size=global_batch_size, seed=seed)
  _check_precision(precision)
  replicator = core.Replicator()
  context = inputs_lib.InputContext(
      global_batch_size, replicator.worker_id, replicator.num_pipelines,
      replicator.num_replicas, seed)
  context.get_per_replica_batch_size(global_batch_size)
  keras.config.set_floatx("float64" if precision == "float64" else "float32")
  keras.config.set_dtype_policy(precision)
  keras.utils.set_random_seed(seed)
  random.set_seed(seed)
  with replicator.scope():
    step = make_step()
  check_owners(step)
  check_supported(step, replicator.name, replicator.num_replicas)
  if _substitute:
    return _substitute(replicator, step, inputs, context)
  facts = {"strategy": replicator.name, "num_replicas": replicator.num_replicas,
           "num_workers": replicator.num_workers, "global_batch_size": global_batch_size,
           "seed": seed, "precision": precision, "steps": steps}
  schedule = _Schedule(steps, steps_per_call, log_every, eval_every, checkpoint_every)
  loop = _Loop(replicator, step, schedule, evaluate, pathlib.Path(workdir), facts)
  loop.run(lambda first: _iterator(inputs, context, first, steps_per_call))
  return step


Substitute = Callable[
    [core.Replicator, Callable, inputs_lib.Inputs | None, inputs_lib.InputContext], Any]
_substitute: Substitute | None = None


@contextlib.contextmanager
def instead_of_training(substitute: Substitute) -> Iterator[None]:
  """Inside, `train` prepares all as ever, then calls `substitute` in place of the training loop.

  It gets the replicator, the step, the inputs and their context; `replicator.doctor` records
  with it what the step computes.
  """
  global _substitute
  _substitute = substitute
  try:
    yield
  finally:
    _substitute = None


@dataclasses.dataclass(frozen=True)
class _Schedule:
  steps: int
  steps_per_call: int
  log_every: int
  eval_every: int
  checkpoint_every: int

  def due(self, every: int, step: int) -> bool:
    return every > 0 and (step % every == 0 or step == self.steps)


class _Loop:
  """One process's part in a run."""

  def __init__(self, replicator: core.Replicator, step_object: Callable, schedule: _Schedule,
               evaluate: Callable | None, workdir: pathlib.Path, facts: dict):
    is_chief = replicator.worker_id == 0
    self.replicator = replicator
    self.schedule = schedule
    self.checkpoints = checkpoint.Checkpoints(workdir / "checkpoints", step_object, is_chief)
    self.function = TrainingFunction(replicator, step_object, schedule.steps_per_call)
    self.step = 0
    self.seconds = 0.0
    self.window = _Window()
    self._restore()
    self.chief = (_Chief(workdir, facts, self.step, lambda: evaluate(step_object)
                         if evaluate else None) if is_chief else None)

  def run(self, make_iterator: Callable[[int], Iterator]) -> None:
    """Trains up to the last step."""
    if not self.chief:
      self._run(make_iterator)
      return
    with self.chief.progress:
      if self.step:
        self.chief.progress.note(f"resumed at step {self.step}")
      if self.replicator.servers:
        self.chief.progress.note(self.replicator.servers.describe())
      self._run(make_iterator)
      self.chief.finish()

  def _run(self, make_iterator):
    if self.step == 0:
      self._at_boundary()
    first_step = self.step
    iterator = make_iterator(first_step)
    running: collections.deque[Result] = collections.deque()
    started = time.monotonic() - self.seconds
    with StopSignal() as stop:
      while self.step < self.schedule.steps:
        running.append(self.function(self.step, next(iterator), stop.received))
        first_call = self.step == first_step
        self.step += self.schedule.steps_per_call
        all_done = self._is_boundary() or stop.received or first_call
        while running and (all_done or len(running) > self.replicator.max_running):
          stop.agreed |= self.window.add(*running.popleft().fetch())
        self.seconds = time.monotonic() - started
        if first_call:
          self._after_first_call()
        self._at_boundary(stop.agreed)
        if stop.agreed:
          raise Preempted(self.step)

  def _is_boundary(self) -> bool:
    s = self.schedule
    return any(s.due(every, self.step) for every in (s.log_every, s.eval_every, s.checkpoint_every))

  def _at_boundary(self, stopping: bool = False) -> None:
    """Logs, evaluates and saves what is due at this step."""
    s = self.schedule
    scalars = self.window.take() if self.step and s.due(s.log_every, self.step) else {}
    if self.chief:
      self.chief.report(self.step, self.seconds, scalars, s.due(s.eval_every, self.step))
    if self.step and (s.due(s.checkpoint_every, self.step) or stopping):
      self.checkpoints.save(self.step, {"seconds": self.seconds, "window": self.window.state()})

  def _after_first_call(self) -> None:
    if not tf.config.functions_run_eagerly():
      self.checkpoints.check_complete(self.function.variables())
    if self.chief:
      self.chief.record.config()

  def _restore(self) -> None:
    state = self.checkpoints.restore()
    if state is not None:
      self.step, self.seconds = state["step"], state["seconds"]
      self.window = _Window(state["window"])
    if self.replicator.num_pipelines > 1:
      self._check_agreement()

  def _check_agreement(self) -> None:
    """All workers must have restored the same step: one folder must be shared by all."""
    mine = tf.constant(self.step, tf.int64)
    steps = np.unique(self.replicator.run(lambda: collectives.all_gather(mine))[0].numpy())
    if len(steps) > 1:
      raise UsageError(
          f"--workdir: worker {self.replicator.worker_id} restored step {self.step}, but the "
          f"workers of this run restored steps {', '.join(map(str, steps))}; all workers must see "
          "the same workdir, on a file system that they share")


class _Chief:
  """What one process does for all: evaluates, records, and tells how it goes."""

  def __init__(self, workdir: pathlib.Path, facts: dict, first_step: int,
               evaluate: Callable[[], Evaluation | None]):
    self.record = record.Record(workdir, facts, first_step)
    self.progress = Progress(facts["steps"], facts["global_batch_size"], first_step)
    self._evaluate = evaluate

  def report(self, step: int, seconds: float, scalars: dict[str, float], evaluate: bool) -> None:
    """Writes one row: the scalars of a log point, if it is one, and of an evaluation, if due."""
    if scalars:
      self.progress.update(step, scalars)
    if evaluate:
      scalars = {**scalars, **self._evaluation(step)}
    if scalars:
      self.record.metrics(step, seconds, scalars)

  def _evaluation(self, step: int) -> dict[str, float]:
    with step_context.entered(tf.constant(step, tf.int64)):
      found = self._evaluate()
    if found is None:
      return {}
    if found.method and self.record.note("evaluation", found.method):
      self.progress.note(f"evaluation: {found.method}")
    if found.picture is not None:
      self.record.picture(step, found.picture)
    scalars = {f"eval/{name}": float(value) for name, value in found.scalars.items()}
    self.progress.note(f"step {step}  " + "  ".join(
        f"{name} {value:.4g}" for name, value in scalars.items()))
    return scalars

  def finish(self) -> None:
    """Writes the report."""
    from replicator import report  # It takes matplotlib with it.
    self.progress.note(f"done: {report.write_report(self.record.workdir)}")


class _Window:
  """The mean of each scalar since the last log point."""

  def __init__(self, state: dict | None = None):
    self._sums: dict[str, float] = dict(state["sums"]) if state else {}
    self._count: int = state["count"] if state else 0

  def add(self, values: dict[str, np.ndarray], stop: bool) -> bool:
    """Adds the values of some steps, `{name: [steps]}`; passes `stop` on."""
    for name, series in values.items():
      self._sums[name] = self._sums.get(name, 0.0) + float(np.sum(series, dtype=np.float64))
    self._count += len(next(iter(values.values())))
    return stop

  def take(self) -> dict[str, float]:
    """The means; the window starts anew."""
    means = {name: total / self._count for name, total in self._sums.items()}
    self._sums, self._count = {}, 0
    return means

  def state(self) -> dict:
    return {"sums": self._sums, "count": self._count}


def _iterator(inputs: inputs_lib.Inputs | None, context: inputs_lib.InputContext,
              first_step: int, steps_per_call: int) -> Iterator:
  if inputs is None:
    while True:
      yield None
  dataset = inputs_lib.batches(inputs, context, first_step)
  yield from dataset.batch(steps_per_call, drop_remainder=True).prefetch(1)
  raise UsageError("the data set of the input function ended before train.steps; make it repeat()")


def _check_settings(**settings: int) -> None:
  for name, value in settings.items():
    lowest = 0 if name in ("eval_every", "checkpoint_every", "seed") else 1
    if not isinstance(value, int) or value < lowest:
      raise UsageError(f"train.{name} = {value!r}: must be a whole number of at least {lowest}")
  if settings["seed"] >= 2 ** 32:
    raise UsageError(f"train.seed = {settings['seed']}: must be below 2 ** 32")
  for name in ("steps", "log_every", "eval_every", "checkpoint_every"):
    value = settings[name]
    if value % settings["steps_per_call"]:
      raise UsageError(f"train.{name} = {value}: must be a multiple of train.steps_per_call = "
                       f"{settings['steps_per_call']}")


def _check_precision(precision: str) -> None:
  if precision not in PRECISIONS:
    raise UsageError(f"train.precision = {precision!r}: no such precision."
                     f"{nearest(str(precision), PRECISIONS)} Write one of: {', '.join(PRECISIONS)}")
