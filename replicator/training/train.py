"""`train`: makes the configured strategy, step and inputs, and runs the loop."""

import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from replicator import random
from replicator.configuration import operative
from replicator.errors import UsageError
from replicator.internals.keras_internals import compute_alone
from replicator.step import context as step_context
from replicator.step.variables import held_by
from replicator.strategies import agreement
from replicator.strategies.cluster import tf_config
from replicator.strategies.replicator import Replicator
from replicator.strategies.tracing import graphs
from replicator.training import initial_state, preemption, settings
from replicator.training.callbacks.callback import Callback
from replicator.training.callbacks.calls import Calls
from replicator.training.callbacks.defaults import callbacks_of_run
from replicator.training.checkpoints.retention import Checkpoints
from replicator.training.checkpoints.saver import Saver
from replicator.training.checkpoints.start_from import StartFrom
from replicator.training.divergence.guard import Guard
from replicator.training.divergence.rollback import Rollback
from replicator.training.evaluation import Evaluation
from replicator.training.inputs import inputs as inputs_lib
from replicator.training.journal import Journal
from replicator.training.loop import Loop
from replicator.training.position import Position
from replicator.training.run import Run
from replicator.training.schedule import Schedule
from replicator.training.workdir import places, provenance
from replicator.training.workdir.lock import owned

import gin
import keras
import tensorflow as tf

_F = TypeVar("_F", bound=Callable)


def _replicator_first(function: _F) -> _F:
  """Makes the replicator before gin makes the callbacks, whose variables start TensorFlow."""
  @functools.wraps(function)
  def train(*args: Any, replicator: Replicator | None = None, **settings: Any) -> Any:
    return function(*args, replicator=replicator or Replicator(), **settings)
  return train  # type: ignore[return-value]


@_replicator_first
@gin.configurable(module="replicator", denylist=[
    "make_step", "inputs", "evaluate", "before_call", "workdir", "replicator", "guard",
    "checkpoints"])
def train(make_step: Callable[[], Callable],
          inputs: inputs_lib.Inputs | None = None,
          evaluate: Callable[[Any], Evaluation] | None = None,
          before_call: Callable[[Any, int], None] | None = None,
          *,
          workdir: str | os.PathLike,
          replicator: Replicator | None = None,
          steps: int = gin.REQUIRED,
          global_batch_size: int = 64,
          seed: int = 0,
          precision: Literal["float32", "float64", "mixed_bfloat16", "mixed_float16"] = "float32",
          deterministic: bool = True,
          check_first_step: bool = True,
          steps_per_call: int = 1,
          log_every: int = 100,
          eval_every: int = 1000,
          checkpoint_every: int = 1000,
          callbacks: Sequence[Callback] = (),
          start_from: str | StartFrom | None = None,
          guard: Guard | None = None,
          checkpoints: Checkpoints | None = None) -> Any:
  """Trains a step on every replica, or resumes the run in `workdir`.

      mirrored = Replicator("mirrored", logical_cpus=2)  # Before the data set.
      replicator.train(MyStep, make_dataset(), workdir="runs/a", steps=1000, replicator=mirrored,
                       callbacks=[Plateau()])

  Arguments not passed here can be bound in gin as `train.NAME`.

  Args:
    make_step: called once, in the strategy's scope; returns the step. The step is called on every
      replica with its part of a batch (without arguments if there are no `inputs`), and returns a
      dict of scalars. They are averaged over replicas and between log points. For a counter, a
      `tf.Variable` or a scalar of an unsigned type such as `tf.uint64`, the last value is logged.
      Everything that must survive a restart must be an attribute of the step: make it a `tf.Module`
      or a `keras.Model`. For a model, its own `train_step` is called, or else its `call`. A method
      `doubts` of the step takes the means of the scalars since the last log point, and returns
      warnings by topic; each topic is printed once.
    inputs: a `tf.data.Dataset` of global batches, an example source or an input function, see
      `training.inputs.inputs`; None for a step that makes its own examples.
    evaluate: called with the step, before the first step and every `eval_every` steps. The chief
      calls it; if it has an attribute `on_all_workers = True`, every worker calls it, and computes
      a part with `replicator.strategies.distributed_evaluation`. In it, `replicator.step_number()`
      is the number of training steps done.
    before_call: called in Python on every worker, before every call of `steps_per_call` steps, with
      the step and the number of steps done. It may change variables of the step, for example act in
      an environment and fill a replay buffer. Its state must also be an attribute of the step.
    workdir: the folder for the files of the run, from which it also resumes; or the URL of one in
      an object store, such as 's3://bucket/run'.
    replicator: runs the step; None makes the one that gin configures.
    steps: the number of training steps.
    global_batch_size: the number of examples of one update, over all replicas. A step that makes k
      updates, with `replicator.split(batch, k)`, has an attribute `batches = k` and gets k batches.
    seed: the seed of initial weights, random streams and the order of the examples.
    precision: a Keras dtype policy: 'float32', 'float64', 'mixed_bfloat16' or 'mixed_float16'.
      With 'mixed_float16', a step must call each optimizer's `scale_loss`.
    deterministic: whether to use TensorFlow's deterministic operations, so that a resumed run
      equals an uninterrupted one bit for bit. Asynchronous workers are an exception, because their
      steps overlap. The setting applies to the whole process, including later runs in it.
    check_first_step: whether to compare the first step on several replicas, or in micro-batches,
      with the same step on one device, for a few examples; and the first step of a resumed run with
      the step that first followed its checkpoint. Each prints a line or a warning.
    steps_per_call: the number of steps in one compiled call, without Python in between.
    log_every: the number of steps between log points.
    eval_every: the number of steps between evaluations; 0 for none.
    checkpoint_every: the number of steps between checkpoints; 0 for none.
    callbacks: extensions of the loop, such as `[@Histograms(), @MLflow()]`; see `Callback`.
    start_from: the workdir of another run, or its URL, from which the networks of a new run take
      their initial weights; a `StartFrom` chooses which.
    guard: what to do about numbers that are not finite; None makes the one that gin configures.
    checkpoints: which checkpoints to keep; None for what gin configures.

  Returns:
    The trained step.

  Raises:
    UsageError: a setting is invalid; the message says which one, and what to write.
    Preempted: SIGTERM or SIGINT arrived; the state is saved.
    RunFailed: a step diverged, a callback failed, another worker does not respond, or the workdir
      can no longer be written.
  """
  assert replicator is not None  # See `_replicator_first`.
  settings.check(steps=steps, steps_per_call=steps_per_call, log_every=log_every,
                 eval_every=eval_every, checkpoint_every=checkpoint_every,
                 global_batch_size=global_batch_size, seed=seed)
  settings.check_called("evaluate", evaluate, "step")
  settings.check_called("before_call", before_call, "step", "number")
  guard, checkpoints = guard or Guard(), checkpoints or Checkpoints()
  if deterministic:
    tf.config.experimental.enable_op_determinism()
    graphs.add_in_order()
  inputs_lib.check(inputs)
  context = _agreed_context(replicator, inputs, global_batch_size, seed)
  _set_process(replicator, precision, seed, global_batch_size, steps)
  last_step = settings.limited(steps, steps_per_call)
  facts = {"strategy": replicator.name, "num_replicas": replicator.num_replicas,
           "num_workers": replicator.num_workers, "global_batch_size": global_batch_size,
           "seed": seed, "precision": precision, "jit_compile": replicator.jit_compile,
           "steps": last_step}
  with (operative.calls_of_one_run("replicator.train"), preemption.sigterm_held() as release,
        places.local(os.fspath(workdir), replicator.worker_id == 0) as folder,
        replicator.lost_workers_named()):
    schedule = Schedule(last_step, steps_per_call, log_every, eval_every, checkpoint_every,
                        callbacks_of_run(callbacks))  # The place may have installed one.
    with replicator.scope():
      step = make_step()
    settings.check_step(step, inputs is not None)
    facts["batches"] = step_context.run.batches = settings.batches_of(step)
    context = dataclasses.replace(context, batches=step_context.run.batches)
    for _, network in held_by(step, (keras.layers.Layer,)):
      compute_alone(network)
    if isinstance(start_from, str):
      start_from = StartFrom(start_from)
    origin, notes = (start_from.begin(step, replicator, folder) if start_from else (None, []))
    run = Run(step, replicator, folder, schedule, inputs, context, evaluate, before_call, guard,
              checkpoints)
    run.checks_first_step, run.is_exact = check_first_step, deterministic
    if not preemption.hears_signals():
      run.say("note: train was not called in the main thread, so SIGTERM and Ctrl-C do not save")
    calls = Calls(run)
    calls.begin_installed()
    run.guard.check_supported(replicator.name)
    facts.update(initial_state.noted(run))
    facts.update({"start_from": origin} if origin else {})
    facts.update({"data": found} if (found := inputs_lib.summary_of(inputs)) else {})
    with owned(folder) if run.is_chief else contextlib.nullcontext():
      run.saver = Saver(folder / "checkpoints", step, replicator, run.retention)
      if not (evaluate and run.schedule.eval_every):
        run.retention.check_logged([], evaluated=True)
      position = Position(run, Rollback(run.guard, replicator, folder, run.input_context))
      if why := run.schedule.missed(run.step):
        raise UsageError(why)
      journal = Journal(run, facts, notes)
      Loop(run, position, journal, calls).train(release)
  return step


def _agreed_context(replicator: Replicator, inputs: inputs_lib.Inputs | None,
                    global_batch_size: int, seed: int) -> inputs_lib.InputContext:
  """Returns this process's part of the inputs; raises a UsageError if the processes disagree."""
  if not step_context.run.is_loading:
    tf_config.check_used(replicator.name, os.environ, replicator.manager)
  with replicator.lost_workers_named():
    agreement.check(replicator.worker_id, replicator.num_pipelines, inputs_lib.num_examples(inputs),
                    provenance.digests_of_code)
  context = inputs_lib.InputContext(
      global_batch_size, replicator.worker_id, replicator.num_pipelines, replicator.num_replicas,
      seed)
  context.get_per_replica_batch_size(global_batch_size)
  return context


def _set_process(replicator: Replicator, precision: str, seed: int, global_batch_size: int,
                 steps: int) -> None:
  """Sets the precision, the seeds and the facts of the run, for the whole process."""
  keras.config.set_floatx("float64" if precision == "float64" else "float32")
  keras.config.set_dtype_policy(precision)
  if keras.config.image_data_format() != "channels_last" and replicator.worker_id == 0:
    print("warning: Keras' image_data_format is channels_first, so its layers take images "
          "[n, c, h, w]; images here are [n, h, w, c]: change it in keras.json, or call "
          "keras.config.set_image_data_format('channels_last')", file=sys.stderr, flush=True)
  keras.utils.set_random_seed(seed)
  random.set_seed(seed)
  step_context.run.global_batch_size, step_context.run.steps = global_batch_size, steps
  step_context.run.outside.step = 0  # Until the position of the run is known.
  step_context.run.num_input_pipelines = replicator.num_pipelines
