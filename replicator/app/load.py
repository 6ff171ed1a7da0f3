"""`load`: the trained step of a run, from the files of its workdir."""

import contextlib
import os
import pathlib
import random
import sys
import typing
from collections.abc import Callable, Sequence
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from replicator import rerun
from replicator.app import config
from replicator.app.program import main_of_run
from replicator.checkpoints.checkpoint import Checkpoints
from replicator.configuration import annotations, operative, statements
from replicator.configuration.checks import missing_values_reported
from replicator.configuration.configurables import binding_name, result_of
from replicator.configuration.gin_internals import current_bindings, registry, unlock
from replicator.configuration.statements import CONSTANT
from replicator.errors import UsageError
from replicator.step import context
from replicator.storage.urls import folder_of
from replicator.training.observer import Training, run_until_prepared

# One replica on whatever this machine has, and nothing that lasts longer than the load.
_HERE = ("Replicator.strategy = 'default'", "Replicator.logical_cpus = None",
         "Replicator.tpu = None", "Replicator.jit_compile = False",
         "Replicator.devices_per_replica = 1", "train.deterministic = False",
         "train.trackers = ()")
REMEDY = ("build its step by hand, and read its checkpoint with "
          "replicator.checkpoints.checkpoint.read")
"""The remedy for a run whose `run.json` is of no use."""

Call = tuple[str, str]  # The scope and the full name of a configurable.


def load(run: str | os.PathLike, step: int | Literal["best"] | None = None,
         bindings: Sequence[str] = (), main: Callable[[str], None] | None = None) -> Any:
  """Returns the trained step of a run, ready to call.

      gan = replicator.load("runs/digits")
      images = gan.generate(tf.random.normal([16, gan.latent_dim]), tf.zeros([16], tf.int32))

  The run may be of any experiment and strategy, and still under way: nothing is written to its
  workdir. The step is built on one device, by the program in `run.json` with the configuration in
  `config.gin`, and gets the values of a checkpoint. The data of the run must be there, because its
  shape belongs to the step; but nothing is trained or evaluated. Modules that Python does not find
  elsewhere are looked for in the folder in which the run was started. Both files are programs: load
  only runs that you trust.

  Afterwards the configuration of gin, the precision of Keras and the seed of the random streams are
  those of the run, since parts of the step read them when they are called. If gin had a
  configuration before, all of that stays, and a run that would compute something else is refused.

  Args:
    run: the workdir of the run, or its URL, of which a copy is kept in `~/.cache/replicator/runs`.
    step: the number of training steps after which the checkpoint was saved; 'best' for the one
      that `Checkpoints.keep_best` names; None for the newest good one.
    bindings: gin bindings that override those of the run, such as
      `"ImageFolder.path = '/data/cifar10'"` where the data has moved.
    main: for a run of a notebook, which has no program: the function of a workdir that calls
      `train`, such as `experiments.sngan.sngan`. It takes the place of the program.

  Raises:
    UsageError: a file of the run is missing or corrupt, its program is gone, there is no such
      checkpoint, or the configuration of gin does not go with that of the run.
  """
  return load_training(run, step, bindings, main=main)[0].step


def load_training(run: str | os.PathLike, step: int | Literal["best"] | None = None,
                  bindings: Sequence[str] = (), is_trusted: bool = True,
                  main: Callable[[str], None] | None = None) -> tuple[Training, int]:
  """As `load`: the training of the step, and the number of steps after which it was saved.

  In the folder in which the run was started, modules are looked for only if it `is_trusted`.
  """
  if step is not None and step != "best" and not (isinstance(step, int) and step >= 0):
    raise UsageError(f"step = {step!r}: write the step of a checkpoint, or 'best'")
  folder = folder_of(run, "newest" if step is None else "all")
  facts = rerun.read_facts(folder, REMEDY)
  if is_trusted and facts["working_directory"] not in sys.path:
    sys.path.append(facts["working_directory"])  # `python -m` puts it there, but before others.
  before = _calls()
  with _process_remembered() as stack:
    unlock()  # The program may not be imported yet, and defines what is configurable.
    main = main or main_of_run(facts)
    _parse(folder, [*bindings, *_HERE], facts["working_directory"], is_trusted)
    context.run.is_loaded = True
    with missing_values_reported():
      training = run_until_prepared(main, lambda training: training, f"{folder}: its program")
    loaded = training, Checkpoints(folder / "checkpoints", training.step).restore_step(step)
    if not before:
      stack.pop_all()
      unlock()
      return loaded
    calls = before | _calls()
    of_run = _values(calls)
  _check_alike(folder, of_run, _values(calls))
  return loaded


def _parse(folder: pathlib.Path, bindings: Sequence[str], started_in: str, is_trusted: bool
           ) -> None:
  try:
    config.parse([str(folder / "config.gin")], bindings)
  except UsageError as error:
    if not isinstance(error.__cause__, ModuleNotFoundError):
      raise
    where = "it is not there either" if is_trusted else "--yes looks for it there, too"
    raise UsageError(f"{error}; the run was started in {started_in}: {where}") from error


def _process_remembered() -> contextlib.ExitStack:
  """A context that puts back what a training sets for the whole process."""
  stack = contextlib.ExitStack()
  stack.callback(statements.remember_configuration())
  stack.callback(context.remember_run())
  stack.callback(keras.config.set_floatx, keras.config.floatx())
  stack.callback(keras.config.set_dtype_policy, keras.config.dtype_policy())
  stack.callback(random.setstate, random.getstate())
  stack.callback(np.random.set_state, np.random.get_state())
  return stack


# ---- What a step reads of the configuration when it is called ------------------------------------


def _calls() -> set[Call]:
  """The calls for which gin has values now."""
  return {key for key in current_bindings() if key[1] != CONSTANT}


def _values(calls: set[Call]) -> dict[str, str]:
  """The precision, and by name the values of those calls that may come after a step is built."""
  return {"train.precision": repr(keras.config.dtype_policy().name), **{
      binding_name(scope, selector, name): repr(annotations.resolved(value))
      for scope, selector in calls if _computes(result_of(registry()[selector]))
      for name, value in operative.values_of_call(scope, selector).items()}}


def _computes(returned: Any) -> bool:
  """Whether a function returns tensors, as far as its annotation says; others make parts."""
  return returned in (None, tf.Tensor) or tf.Tensor in typing.get_args(returned)


def _check_alike(folder: pathlib.Path, of_run: dict[str, str], here: dict[str, str]) -> None:
  for name in sorted(of_run.keys() | here.keys()):
    then, now = of_run.get(name), here.get(name)
    if then != now:
      raise UsageError(f"{folder}: has {name} = {then}, and this process {now}, which the step "
                       "would read when it is called; load the run in a process of its own, or "
                       "after gin.clear_config()")
