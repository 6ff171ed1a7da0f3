"""Prints the values that a run would use, where each comes from, and changes from an earlier run.

It runs the program up to its training loop and traces its step, on one device and without writing
files. A run makes the same calls; those of an evaluation are not known in advance.
"""

import argparse
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from replicator.app import config
from replicator.configuration import annotations, checks, differences, operative, statements
from replicator.configuration.configurables import binding_name, defaults, parameters, short_name
from replicator.configuration.gin_internals import (
  Values,
  current_bindings,
  operative_config,
  registry,
)
from replicator.configuration.literals import literal
from replicator.configuration.statements import MACRO, Binding
from replicator.console.error_line import line_of
from replicator.errors import UsageError, first_line
from replicator.strategies.compiled_step import CompiledStep
from replicator.strategies.replicator import replaced
from replicator.training.callbacks.callback import Callback, installed
from replicator.training.inputs.pipeline import stream
from replicator.training.prepared import Enough
from replicator.training.run import Run
from replicator.training.workdir.places import folder_of, is_url

import gin
from rich.console import Console

_REPLICATOR = "replicator.Replicator"

Row = tuple[str, str, str]  # `scope/configurable.parameter`, its value as gin text, its source.


def explain(main: Callable[[str], None], flags: argparse.Namespace) -> None:
  """Implements the flags `--explain` and `--diff` of an experiment.

  Raises:
    UsageError: the configuration of the earlier run is missing or is not gin.
  """
  before = _configuration_of(flags.diff) if flags.diff else ""
  workdir = flags.workdir if flags.workdir and not is_url(flags.workdir) else "runs/explained"
  problem = _trace(main, workdir, flags.gin_file, flags.gin_param)
  if flags.explain:
    _print_values(problem, flags.explain == "all")
  if flags.diff:
    _print_differences(before, flags.diff)


def _trace(main: Callable[[str], None], workdir: str, files: Sequence[str],
           params: Sequence[str]) -> str | None:
  """Traces the step of a configured program; returns why it cannot be traced, or None."""
  devices = current_bindings().get(("", _REPLICATOR), {}).get("devices_per_replica", 1)
  alone = ({"strategy": "default", "logical_cpus": None} if devices == 1 else
           {"strategy": "mirrored", "logical_cpus": devices})
  config.parse(files, params)
  tracer = _Tracer()
  with installed([tracer]), replaced(**alone), contextlib.suppress(Enough):
    main(workdir)
  return tracer.problem


class _Tracer(Callback):
  on_all_workers = True
  problem: str | None = None

  def begin(self, run: Run) -> None:
    try:
      with contextlib.closing(stream(run.inputs, run.input_context)) as batches:
        CompiledStep(run.replicator, run.module, logs=True).trace(next(batches))
    except Exception as error:
      self.problem = f"the step cannot be traced: {line_of(error)}"
    raise Enough


def _print_values(problem: str | None, defaults_too: bool) -> None:
  """Prints the values of the traced program, and its problems; `problem` is from `_trace`."""
  bindings, called = statements.last_read(), operative_config()
  console = Console(highlight=False, soft_wrap=True)
  if defaults_too:
    _print_all(bindings, called, console)
  else:
    _print_set(bindings, called, console)
  without_effect = [str(each) for each in checks.unused(bindings, called) if each.certain]
  for each in [*filter(None, [problem]), *without_effect]:
    console.print(f"\nproblem: {each}", style="bold red", markup=False)


def _print_set(bindings: Sequence[Binding], called: Values, console: Console) -> None:
  """Prints the values that files, the command line and the program set."""
  rows = _rows(current_bindings(), bindings)
  for line in _aligned(rows):
    console.print(line, markup=False)
  number = sum(source.startswith("default") for *_, source in _rows(called, bindings))
  console.print(f"\n{number} more values keep their defaults; --explain=all prints them",
                style="dim")


def _print_all(bindings: Sequence[Binding], called: Values, console: Console) -> None:
  # gin does not record defaults that are functions.
  functions = {key: {name: default for name, default in defaults(registry()[key[1]]).items()
                     if callable(default)} for key in called}
  used = _rows({key: {**functions[key], **values} for key, values in called.items()}, bindings)
  others = _rows(_other_values(bindings), bindings)
  rows = [*used, *others]
  owner = ""
  for row, line in zip(rows, _aligned(rows), strict=True):
    before, owner = owner, row[0].rpartition(".")[0]
    if row is others[0]:
      console.print("\nNot used to build the run or trace its step. An evaluation or the "
                    "training loop may use them;\nany that are set but have no effect end the "
                    "run after its first step:\n")
    elif before not in ("", owner):
      console.print()
    console.print(line, style="dim" if row[2].startswith("default") else "bold", markup=False)


def _aligned(rows: Sequence[Row]) -> list[str]:
  """Aligns rows in columns as wide as their texts, except for very long ones."""
  names = min(max((len(row[0]) for row in rows), default=0), 60)
  values = min(max((len(row[1]) for row in rows), default=0), 40)
  return [f"{name:<{names}}  {value:<{values}}  {source}".rstrip() for name, value, source in rows]


def _other_values(bindings: Sequence[Binding]) -> Values:
  """Returns unused bindings, and the values of configurables that the program did not call."""
  called = operative_config()
  known = {selector for _, selector in called}
  others: Values = {}
  for binding in checks.effective(bindings):
    key = binding.scope, binding.selector
    if binding.selector not in known:
      others[key] = operative.values_of_call(*key)
    elif not checks.is_used(binding, called):
      others.setdefault(key, {})[binding.parameter] = binding.value
  for selector, _ in registry().items():
    if selector not in known and not selector.startswith(("gin.", "keras.", "tf.")):
      others.setdefault(("", selector), operative.values_of_call("", selector))
  return others


def _rows(values: Values, bindings: Sequence[Binding]) -> list[Row]:
  ordered = sorted((key for key in values if not key[1].startswith("gin.")),
                   key=lambda key: (short_name(key[1]).lower(), key[0]))
  rows = []
  for scope, selector in ordered:
    used = values[scope, selector]
    in_order = [*filter(used.__contains__, parameters(registry()[selector])), *used]
    rows += [(binding_name(scope, selector, name), _shown(used[name]),
              _source(scope, selector, name, bindings)) for name in dict.fromkeys(in_order)]
  return rows


def _shown(value: Any) -> str:
  if callable(value) and not isinstance(value, gin.config.ConfigurableReference):
    return getattr(value, "__name__", repr(value))
  if isinstance(value, gin.config.ConfigurableReference) and value.configurable.selector == MACRO:
    return f"{literal(annotations.resolved(value))} ({value!r})"
  return literal(value)


def _source(scope: str, selector: str, parameter: str, bindings: Sequence[Binding]) -> str:
  """Returns where a value comes from: `a.gin:3, over b.gin:2`, 'command line', or 'default'."""
  for outer in reversed(operative.outer_scopes(scope)):
    found = [binding.where if binding.file else "command line" for binding in bindings
             if binding.key == (outer, selector, parameter)]
    if found:
      return ", over ".join(found[:-3:-1])
    if parameter in current_bindings().get((outer, selector), {}):
      return "the program"
  # gin does not record whether the program passed a function in place of the default one.
  used = operative_config().get((scope, selector), {parameter: None})
  return "default" if parameter in used else "default, unless the program sets it"


def _configuration_of(run: str) -> str:
  """Reads the text of a run's `config.gin`; `run` is a workdir, or the file itself.

  Raises:
    UsageError: the file is missing or is not gin.
  """
  path = folder_of(run)
  path = path / "config.gin" if path.is_dir() else path
  try:
    written = path.read_text(encoding="utf-8-sig")
    differences.values(written)
  except (OSError, ValueError) as error:
    reason = "no such file" if isinstance(error, FileNotFoundError) else first_line(error)
    raise UsageError(f"--diff={run}: {path}: {reason}; give the workdir of a run") from error
  return written


def _print_differences(before: str, run: str) -> None:
  """Prints how the values of the traced run differ from `before`, the configuration of `run`."""
  found = differences.differences(before, operative.text(before))
  if not found:
    print(f"no value differs from {run}")
    return
  rows = [(name, now or "--", earlier or "--") for name, (earlier, now) in found.items()]
  print("\n".join(_aligned([("", "here", run), *rows])))
