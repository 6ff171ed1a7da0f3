"""`train`: makes the strategy, the step and its inputs as configured, and runs the loop."""

import contextlib
import inspect
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

import gin
import keras
import tensorflow as tf

from replicator import random
from replicator.checkpoints.start_from import StartFrom
from replicator.cluster import tf_config
from replicator.configuration import operative
from replicator.divergence.guard import Guard
from replicator.errors import UsageError
from replicator.inputs import inputs as inputs_lib
from replicator.optimizers.wrap import check_owners
from replicator.step import context as step_context
from replicator.strategies import agreement
from replicator.strategies.replicator import Replicator
from replicator.trackers import tracker
from replicator.trackers.tracker import Tracker
from replicator.training import loop, observer, preemption
from replicator.training.chief import Evaluation
from replicator.training.observer import Training
from replicator.workdir import remote
from replicator.workdir.lock import owned


@gin.configurable(module="replicator",
                  denylist=["make_step", "inputs", "evaluate", "before_call", "workdir"])
def train(make_step: Callable[[], Callable],
          inputs: inputs_lib.Inputs | None = None,
          evaluate: Callable[[Any], Evaluation] | None = None,
          before_call: Callable[[Any, int], None] | None = None,
          *,
          workdir: str,
          steps: int = gin.REQUIRED,
          global_batch_size: int = 64,
          seed: int = 0,
          precision: Literal["float32", "float64", "mixed_bfloat16", "mixed_float16"] = "float32",
          deterministic: bool = True,
          steps_per_call: int = 1,
          log_every: int = 100,
          eval_every: int = 1000,
          checkpoint_every: int = 1000,
          trackers: Sequence[Tracker] = (),
          start_from: str | None = None,
          profile: tuple[int, int] | None = None,
          patience: int = 0) -> Any:
  """Trains a step under the strategy of the gin file, or resumes the run in `workdir`.

  Args:
    make_step: called once, in the strategy's scope; returns the step. The step is called on
      every replica with its part of a batch (without arguments if there are no `inputs`) and
      returns a dict of scalars, which are averaged over replicas and between log points; of a
      counter, a `tf.Variable` or a scalar of an unsigned type such as `tf.uint64`, the last value
      is logged.
      Everything that must survive a restart is an attribute of the step: make it a `tf.Module`.
    inputs: an example source or an input function, see `replicator.inputs.inputs`; None for a step
      that makes its own examples.
    evaluate: called with the step, before the first step and every `eval_every` steps. The chief
      calls it; if it has a true attribute `on_all_workers`, every worker does, to compute a part of
      it with `replicator.strategies.distributed_evaluation`.
    before_call: called in Python with the step and the number of steps that are done, before every
      call of `steps_per_call` steps, on every worker, to change variables of the step: for example,
      to act in an environment and fill a replay. What it keeps is an attribute of the step, too.
    workdir: the folder where the run leaves its files, and where it resumes from; or the URL of
      one in an object store, such as 's3://bucket/run'.
    steps: how many training steps.
    global_batch_size: examples of one step over all replicas.
    seed: of initial weights, random streams and the order of the examples.
    precision: a Keras dtype policy: 'float32', 'float64', 'mixed_bfloat16' or 'mixed_float16',
      under which a step must call each optimizer's `scale_loss`.
    deterministic: use TensorFlow's deterministic operations, so that a resumed run equals the
      uninterrupted one bit for bit. Asynchronous workers are an exception: their steps overtake
      each other. The setting applies to the whole process, and to later trainings in it.
    steps_per_call: steps that one compiled call makes, without Python in between.
    log_every: steps between log points.
    eval_every: steps between evaluations; 0 for none.
    checkpoint_every: steps between checkpoints; 0 for none.
    trackers: what else gets all that is logged, such as `[@MLflow()]`; see `Tracker`.
    start_from: the workdir of another run, or its URL, whose weights the networks of a new run
      begin with; `checkpoints.start_from.StartFrom` says which.
    profile: the first and the last step to profile, such as (100, 110), widened to whole calls of
      `steps_per_call` steps; see `tracing.profile`. A run that resumes behind the first of them
      profiles nothing.
    patience: ends the run, as a good one, after so many evaluations in which the scalar
      `Checkpoints.keep_best` was not better than before; 0 for never.

  Returns:
    the trained step.

  Raises:
    UsageError: a setting cannot work; the message says which one, and what to write.
    Preempted: SIGTERM or SIGINT arrived; the state is saved.
    RunFailed: a step diverged, another worker does not answer, or the workdir cannot be written any
      more.
  """
  _check_settings(steps=steps, steps_per_call=steps_per_call, log_every=log_every,
                  eval_every=eval_every, checkpoint_every=checkpoint_every,
                  global_batch_size=global_batch_size, seed=seed, patience=patience)
  _check_called("evaluate", evaluate, "step")
  _check_called("before_call", before_call, "step", "number")
  profiled = _calls_of(profile, steps, steps_per_call)
  tracker.check(trackers)
  if deterministic:  # Must precede every computation.
    tf.config.experimental.enable_op_determinism()
  replicator = Replicator()
  inputs_lib.check(inputs)  # After the Replicator: a source may ask TensorFlow for its size.
  if not step_context.run.is_loading:
    tf_config.check_used(replicator.name, os.environ)
  with replicator.lost_workers_named():
    agreement.check(replicator.worker_id, replicator.num_pipelines, inputs_lib.num_examples(inputs))
  guard = Guard()
  guard.check_supported(replicator.name)
  context = inputs_lib.InputContext(
      global_batch_size, replicator.worker_id, replicator.num_pipelines,
      replicator.num_replicas, seed)
  context.get_per_replica_batch_size(global_batch_size)
  keras.config.set_floatx("float64" if precision == "float64" else "float32")
  keras.config.set_dtype_policy(precision)
  keras.utils.set_random_seed(seed)
  random.set_seed(seed)
  step_context.run.global_batch_size = global_batch_size
  step_context.run.num_input_pipelines = replicator.num_pipelines
  with (operative.calls_of_one_run("replicator.train"), preemption.sigterm_held() as release,
        remote.local(workdir, replicator.worker_id == 0) as place,
        replicator.lost_workers_named()):
    with replicator.scope():
      step = make_step()
    _check_step(step, inputs is not None)
    check_owners(step)
    folder = pathlib.Path(place)
    origin, lines = (StartFrom(start_from).begin(step, replicator, folder) if start_from
                     else (None, []))
    training = Training(replicator, step, inputs, context, evaluate, before_call, lines)
    observer.current().prepared(training)
    facts = {"strategy": replicator.name, "num_replicas": replicator.num_replicas,
             "num_workers": replicator.num_workers, "global_batch_size": global_batch_size,
             "seed": seed, "precision": precision, "steps": steps,
             **({"start_from": origin} if origin else {})}
    schedule = loop.Schedule(steps, steps_per_call, log_every, eval_every, checkpoint_every,
                             profiled, patience)
    with owned(folder) if replicator.worker_id == 0 else contextlib.nullcontext():
      loop.Loop(training, schedule, guard, folder, facts, trackers).run(release)
  return step


def _check_step(step: Callable, has_inputs: bool) -> None:
  if isinstance(step, type) or not callable(step):
    name = f"the class {step.__name__}" if isinstance(step, type) else type(step).__name__
    raise UsageError("train: make_step returned " + name + "; it must return the step, a function "
                     "or a tf.Module that is called with a batch")
  if error := _misfit(step, int(has_inputs)):
    raise UsageError("the step is called with a batch, and takes none; write def __call__(self, "
                     "batch), or give train no inputs" if has_inputs else
                     "the step takes an argument, and train has no inputs to call it with; give "
                     "train inputs, or write def __call__(self)") from error


def _check_called(name: str, function: Callable | None, *arguments: str) -> None:
  if function is None:
    return
  if not callable(function):
    raise UsageError(f"train: {name} is a {type(function).__name__}; give a function of "
                     f"({', '.join(arguments)})")
  if error := _misfit(function, len(arguments)):
    raise UsageError(f"train: {name} is called with the {' and its '.join(arguments)}; write "
                     f"def {name}({', '.join(arguments)})") from error


def _misfit(function: Callable, arguments: int) -> TypeError | None:
  """Why a function cannot be called with so many arguments; None if it can, or does not say."""
  try:
    inspect.signature(function, follow_wrapped=False).bind(*[None] * arguments)
  except TypeError as error:
    return error
  except ValueError:  # It does not say what it takes.
    pass
  return None


def _calls_of(profile: Sequence[int] | None, steps: int, steps_per_call: int) -> tuple[int, int]:
  """The steps where the calls that `profile` names begin and end; (0, 0) for none."""
  if profile is None:
    return 0, 0
  first, last = profile
  if not 1 <= first <= last <= steps:
    raise UsageError(f"train.profile = ({first}, {last}): must be the first and the last step to "
                     f"profile, from 1 to train.steps = {steps}")
  return (first - 1) // steps_per_call * steps_per_call, -(-last // steps_per_call) * steps_per_call


def _check_settings(**settings: int) -> None:
  for name, value in settings.items():
    lowest = 0 if name in ("eval_every", "checkpoint_every", "seed", "patience") else 1
    if not isinstance(value, int) or value < lowest:
      raise UsageError(f"train.{name} = {value!r}: must be a whole number of at least {lowest}")
  if settings["seed"] >= 2 ** 32:
    raise UsageError(f"train.seed = {settings['seed']}: must be below 2 ** 32")
  for name in ("steps", "log_every", "eval_every", "checkpoint_every"):
    value = settings[name]
    if value % settings["steps_per_call"]:
      raise UsageError(f"train.{name} = {value}: must be a multiple of train.steps_per_call = "
                       f"{settings['steps_per_call']}")
