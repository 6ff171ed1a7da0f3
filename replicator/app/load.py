"""`load`: restores the trained step of a run from its workdir."""

import ast
import contextlib
import importlib
import importlib.util
import os
import pathlib
import random
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from replicator.app import config
from replicator.app.experiment import main_of
from replicator.configuration import annotations, operative, statements
from replicator.configuration.checks import missing_values_reported
from replicator.configuration.configurables import binding_name, result_of
from replicator.configuration.gin_internals import current_bindings, registry, unlock
from replicator.configuration.statements import CONSTANT
from replicator.console.error_line import line_of
from replicator.errors import UsageError
from replicator.step import context
from replicator.step.random_bits import set_seed
from replicator.strategies.replicator import replaced
from replicator.tools import rerun
from replicator.training.checkpoints.saver import Saver
from replicator.training.prepared import run_until_prepared
from replicator.training.run import Run
from replicator.training.workdir.places import folder_of

import keras
import numpy as np
import tensorflow as tf

# One replica on any machine, and nothing that outlasts the load.
HERE = {"strategy": "default", "logical_cpus": None, "tpu": None, "jit_compile": False,
        "devices_per_replica": 1}
_BINDINGS = ("train.deterministic = False", "train.callbacks = ()")
REMEDY = ("build its step by hand, and read its checkpoint with "
          "replicator.training.checkpoints.store.read")
"""The remedy for a run whose `run.json` is unusable."""

Call = tuple[str, str]  # The scope and the full name of a configurable.


def load(run: str | os.PathLike, step: int | Literal["best"] | None = None,
         bindings: Sequence[str] = (), main: Callable[[str], None] | None = None) -> Any:
  """Returns the trained step of a run, ready to call.

      gan = replicator.load("runs/digits")
      images = gan.generate(tf.random.normal([16, gan.latent_dim]), tf.zeros([16], tf.int32))

  The run may be of any experiment and strategy, and may still be running: nothing is written to its
  workdir. The step is built on one device, by the program in `run.json` with the configuration in
  `config.gin`, and restored from a checkpoint. The data of the run must be available, because the
  step may depend on its shape; but nothing is trained or evaluated. Modules that Python does not
  find elsewhere are searched for in the folder where the run was started. Loading executes the
  run's program and configuration: load only runs that you trust.

  Afterwards, the gin configuration, the precision of Keras and the seed of the random streams are
  those of the run, since parts of the step read them when they are called. If gin was already
  configured, all of these stay as they were, and a run that would then compute something different
  is rejected.

  Args:
    run: the workdir of the run, or its URL, of which a copy is kept in `~/.cache/replicator/runs`.
    step: the step of the checkpoint; 'best' for the best one by `Checkpoints.keep_best`; None for
      the newest good one.
    bindings: gin bindings that override those of the run, such as
      `"ImageFolder.path = '/data/cifar10'"` if the data has moved.
    main: for a run from a notebook, which has no program: the function of a workdir that calls
      `train`, such as `experiments.sngan.train_sngan`. It replaces the program.

  Raises:
    UsageError: a file of the run is missing or corrupt, its program is missing, there is no such
      checkpoint, or the current gin configuration conflicts with that of the run.
  """
  return load_run(run, step, bindings, main=main)[0].module


def load_run(run: str | os.PathLike, step: int | Literal["best"] | None = None,
             bindings: Sequence[str] = (), is_trusted: bool = True,
             main: Callable[[str], None] | None = None) -> tuple[Run, int]:
  """Loads a step as `load` does; returns its run, and the step of the checkpoint.

  Modules are searched for in the folder where the run was started only if it `is_trusted`.
  """
  if step is not None and step != "best" and not (isinstance(step, int) and step >= 0):
    raise UsageError(f"step = {step!r}: must be the step of a checkpoint, or 'best'")
  folder = folder_of(run, "newest" if step is None else "all")
  facts = rerun.read_facts(folder, REMEDY)
  before = _calls()
  with _process_remembered() as stack:
    main = configured(folder, facts, [*bindings, *_BINDINGS], is_trusted, main)
    context.run.is_loaded = context.run.is_loading = True
    with missing_values_reported(), replaced(**HERE):
      found = run_until_prepared(main, lambda run: run, f"{folder}: its program")
    context.run.is_loading = False
    state = Saver(folder / "checkpoints", found.module).restore_step(step)
    set_seed(context.run.seed, state.get("rollbacks", 0))
    loaded = found, state["step"]
    if not before:
      stack.pop_all()
      unlock()
      return loaded
    calls = before | _calls()
    of_run = _values(calls)
  _check_alike(folder, of_run, _values(calls))
  return loaded


def configured(folder: pathlib.Path, facts: Mapping[str, Any], bindings: Sequence[str],
               is_trusted: bool, main: Callable[[str], None] | None = None
               ) -> Callable[[str], None]:
  """Configures gin as in a run, plus these bindings, and returns the `main` of its program.

  `facts` come from `run.json`. Modules are searched for in the folder where the run was started
  only if it `is_trusted`.
  """
  if is_trusted and facts["working_directory"] not in sys.path:
    sys.path.append(facts["working_directory"])  # `python -m` would put it first.
  unlock()  # The program may not be imported yet, and defines configurables.
  main = main or main_of_run(facts)
  try:
    config.parse([str(folder / "config.gin")], bindings)
  except UsageError as error:
    if not isinstance(error.__cause__, ModuleNotFoundError):
      raise
    where = "it is not there either" if is_trusted else "--yes also looks for it there"
    raise UsageError(
        f"{error}; the run was started in {facts['working_directory']}: {where}") from error
  return main


def check_program(run: str, is_read: bool) -> None:
  """Raises a UsageError for a run of an unknown program, since anyone may have written `run.json`.

  `is_read`: whether the user has read the program.
  """
  program = rerun.read_facts(folder_of(run), REMEDY)["program"]
  if is_read or (program[:1] == ["-m"] and program[1].startswith("experiments.")):
    return
  shown = ascii(" ".join(program))[1:-1]
  raise UsageError(f"{run}/run.json: names the program `{shown}`, which runs when the run is "
                   "loaded; read it, then add --yes")


def _process_remembered() -> contextlib.ExitStack:
  """Returns a context that restores what a run sets for the whole process."""
  stack = contextlib.ExitStack()
  stack.callback(statements.remember_configuration())
  stack.callback(context.remember_run())
  stack.callback(keras.config.set_floatx, keras.config.floatx())
  stack.callback(keras.config.set_dtype_policy, keras.config.dtype_policy())
  stack.callback(random.setstate, random.getstate())
  stack.callback(np.random.set_state, np.random.get_state())
  return stack


# ---- The configuration that a step reads when it is called ---------------------------------------


def _calls() -> set[Call]:
  """Returns the calls for which gin currently has values."""
  return {key for key in current_bindings() if key[1] != CONSTANT}


def _values(calls: set[Call]) -> dict[str, str]:
  """Returns the precision, and the values of calls that a built step may make, by name."""
  return {"train.precision": repr(keras.config.dtype_policy().name), **{
      binding_name(scope, selector, name): repr(annotations.resolved(value))
      for scope, selector in calls if _computes(result_of(registry()[selector]))
      for name, value in operative.values_of_call(scope, selector).items()}}


def _computes(returned: Any) -> bool:
  """Returns whether a function's annotation allows tensors, rather than parts of a step."""
  return returned in (None, tf.Tensor) or tf.Tensor in typing.get_args(returned)


def _check_alike(folder: pathlib.Path, of_run: dict[str, str], here: dict[str, str]) -> None:
  for name in sorted(of_run.keys() | here.keys()):
    then, now = of_run.get(name), here.get(name)
    if then != now:
      raise UsageError(f"{folder}: has {name} = {then}, but this process has {now}, which the "
                       "step would read when it is called; load the run in a separate process, or "
                       "after gin.clear_config()")


# ---- The program of a run ------------------------------------------------------------------------


def main_of_run(facts: Mapping[str, Any]) -> Callable[[str], None]:
  """Returns the `main` that a run's program passes to `replicator.app.run`, without calling it.

  `facts` come from `run.json`. The program is imported under its own name, so that its classes are
  the same as from an `import`. Then its block `if __name__ == "__main__":` runs up to the call of
  `app.run`, with the command line of the run.

  Raises:
    UsageError: the program is missing, cannot be imported, or has no such block.
  """
  words, file = facts["program"], facts["program_file"]
  if file is None:
    raise UsageError("the run was trained in a notebook, so it has no program; call "
                     "replicator.load(run, main=...), with the function that called train")
  name = words[1] if words[:1] == ["-m"] else None
  found = []

  def program() -> None:
    found.append(_imported(name, file))

  arguments, sys.argv = sys.argv, [str(file), *facts["argv"]]
  try:
    main = main_of(program)
    if main is None:
      main = main_of(lambda: _run_main_block(found[0]))
    elif not found:
      raise UsageError(f"{name or file}: calls app.run(main) when it is imported; put "
                       'if __name__ == "__main__": above the call')
  finally:
    sys.argv = arguments
  if main is None:
    raise UsageError(f"{name or file}: does not call replicator.app.run(main) in a block "
                     'if __name__ == "__main__":, as an experiment does')
  return main


def _imported(name: str | None, file: str) -> types.ModuleType:
  try:
    if name is None:
      return _module_of_file(file)
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
      name, spec = f"{name}.__main__", importlib.util.find_spec(f"{name}.__main__")
    if spec is None:
      raise UsageError("there is no such module")
    return _loaded_from(str(spec.origin)) or importlib.import_module(name)
  except Exception as error:  # A program may raise anything.
    where = "" if name is None else f" (it was run from {os.path.dirname(file)})"
    raise UsageError(f"the program of the run, {name or file}, cannot be imported: "
                     f"{line_of(error)}{where}") from error


def _module_of_file(file: str) -> types.ModuleType:
  """Imports the module of a program that was started as `python file.py`."""
  if loaded := _loaded_from(file):
    return loaded
  if not os.path.isfile(file):
    raise UsageError("the file is missing; restore it")
  name = pathlib.Path(file).stem
  if name in sys.modules:
    raise UsageError(f"another module is named '{name}'; load the run in a separate process")
  folder = os.path.dirname(file)
  if folder not in sys.path:  # As Python does, for modules next to the program.
    sys.path.insert(0, folder)
  return importlib.import_module(name)


def _loaded_from(file: str) -> types.ModuleType | None:
  """Returns the module loaded from a file in this process; it may be the running program."""
  return next((module for module in list(sys.modules.values())
               if getattr(module, "__file__", None) and os.path.isfile(file)
               and os.path.abspath(module.__file__ or "") == os.path.abspath(file)), None)


def _run_main_block(module: types.ModuleType) -> None:
  file = str(module.__file__)
  tree = ast.parse(pathlib.Path(file).read_bytes(), file)
  body = [statement for block in tree.body if isinstance(block, ast.If)
          and ast.unparse(block.test) == "__name__ == '__main__'" for statement in block.body]
  exec(compile(ast.Module(body, []), file, "exec"), vars(module))
