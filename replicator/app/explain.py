"""What a run would use, where each value comes from, and what differs from an earlier run.

The program is run up to its training loop, and its step is traced: on one device, without a file in
the workdir. Whatever that calls, a run calls too. What an evaluation calls is not known before it.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gin
import tensorflow as tf

from replicator.app import config
from replicator.configuration import annotations, checks, differences, operative, statements
from replicator.configuration.checks import Values
from replicator.configuration.configurables import binding_name, constructor, parameters, short_name
from replicator.configuration.statements import MACRO, Binding
from replicator.errors import UsageError, first_line
from replicator.training import inputs
from replicator.training.observer import Observer, Training, observed_by

_REPLICATOR = "replicator.Replicator"
_LIBRARIES = ("gin.", "keras.", "tf.")


@dataclasses.dataclass(frozen=True)
class Row:
  """A value of a table.

  Attributes:
    name: `scope/configurable.parameter`.
    value: as gin text.
    source: where it comes from.
  """

  name: str
  value: str
  source: str


@dataclasses.dataclass
class Explanation:
  """What a run would use.

  Attributes:
    used: what building the run and tracing its step asked for.
    others: what is configured or may be, and was not asked for.
    problems: lines on what is wrong.
  """

  used: list[Row]
  others: list[Row]
  problems: list[str]


def trace(main: Callable[[str], None], workdir: str, files: Sequence[str], params: Sequence[str]
          ) -> str | None:
  """Runs a program up to its training loop, so that gin knows what it calls; traces its step.

  Returns:
    why the step could not be traced, or None.
  """
  config.parse(files, params)
  devices = gin.config._CONFIG.get(("", _REPLICATOR), {}).get("devices_per_replica", 1)
  alone = (f"Replicator.strategy = '{'default' if devices == 1 else 'mirrored'}'",
           f"Replicator.logical_cpus = {None if devices == 1 else devices}")
  config.parse(files, [*params, *alone])
  tracer = _Tracer()
  with observed_by(tracer):
    main(workdir)
  called = {key: dict(used) for key, used in gin.config._OPERATIVE_CONFIG.items()}
  config.parse(files, params)
  for key, used in called.items():
    # As the user has it, and not as it was run here.
    bound = operative.values_of_call(*key) if key[1] == _REPLICATOR else {}
    gin.config._OPERATIVE_CONFIG[key] = {**used, **bound}
  return tracer.problem


class _Tracer(Observer):
  """Traces the step of a prepared training, and stops the training before its loop."""

  problem: str | None = None

  def prepared(self, training: Training) -> None:
    try:
      _trace_step(training)
    except Exception as error:
      self.problem = f"the step cannot be traced: {first_line(error)}"
    self.stop()


def _trace_step(training: Training) -> None:
  replicator = training.replicator
  arguments: tuple = ()
  if training.inputs is not None:
    batch = next(iter(inputs.batches(training.inputs, training.input_context)))
    arguments = (replicator.distribute(batch),)
  compiled = replicator.compile(lambda number, arguments: replicator.on_replicas(
      training.step, number, arguments))
  compiled.get_concrete_function(tf.constant(0, tf.int64), arguments)


def explain(problem: str | None) -> Explanation:
  """What gin knows of a program that was traced.

  Args:
    problem: what `trace` returned.
  """
  bindings = statements.last_read()
  called = gin.config._OPERATIVE_CONFIG
  unreached = checks.unreached(bindings, called)
  known = {selector for _, selector in called}
  others: Values = {}
  for binding in checks.effective(bindings):
    if binding.selector not in known:
      others[binding.key[:2]] = operative.values_of_call(binding.scope, binding.selector)
    elif not checks.is_reached(binding, called):
      others.setdefault(binding.key[:2], {})[binding.parameter] = binding.value
  for selector, _ in gin.config._REGISTRY.items():
    if selector not in known and not selector.startswith(_LIBRARIES):
      others.setdefault(("", selector), operative.values_of_call("", selector))
  return Explanation(
      _rows({key: {**_functions(key[1], used), **used} for key, used in called.items()}, bindings),
      _rows(others, bindings),
      [*filter(None, [problem]), *(str(each) for each in unreached if each.certain)])


def _functions(selector: str, used: dict[str, Any]) -> dict[str, Any]:
  """The defaults that gin does not tell, for they are functions."""
  configurable = gin.config._REGISTRY[selector]
  defaults = gin.config._get_kwarg_defaults(constructor(configurable))
  return {name: defaults[name] for name in parameters(configurable)
          if name not in used and callable(defaults.get(name))}


def _rows(values: Values, bindings: Sequence[Binding]) -> list[Row]:
  ordered = sorted((key for key in values if not key[1].startswith("gin.")),
                   key=lambda key: (short_name(key[1]).lower(), key[0]))
  rows = []
  for scope, selector in ordered:
    used = values[scope, selector]
    in_order = [*filter(used.__contains__, parameters(gin.config._REGISTRY[selector])), *used]
    rows += [Row(binding_name(scope, selector, name), _shown(used[name]),
                 _source(scope, selector, name, bindings)) for name in dict.fromkeys(in_order)]
  return rows


def _shown(value: Any) -> str:
  """A value as gin text, macros with what they stand for."""
  if callable(value) and not isinstance(value, gin.config.ConfigurableReference):
    return getattr(value, "__name__", repr(value))
  if isinstance(value, gin.config.ConfigurableReference) and value.configurable.selector == MACRO:
    return f"{annotations.resolved(value)!r} ({value!r})"
  return repr(value)


def _source(scope: str, selector: str, parameter: str, bindings: Sequence[Binding]) -> str:
  """`configs/a.gin:3, over configs/b.gin:2`, 'command line', or 'default'."""
  parts = scope.split("/") if scope else []
  for length in range(len(parts), -1, -1):
    key = "/".join(parts[:length]), selector, parameter
    found = [_place(binding) for binding in bindings if binding.key == key]
    if found:
      return ", over ".join(found[:-3:-1])
    if parameter in gin.config._CONFIG.get(key[:2], {}):
      return "the program"
  # Of a function as a default gin does not know whether the program gave another one.
  used = gin.config._OPERATIVE_CONFIG.get((scope, selector), {parameter: None})
  return "default" if parameter in used else "default, unless the program gives one"


def _place(binding: Binding) -> str:
  return binding.where if binding.file else "command line"


def print_explanation(explanation: Explanation) -> None:
  """An aligned table on standard output, values that are set in bold; plain text in a pipe."""
  from rich.console import Console
  console = Console(highlight=False, soft_wrap=True)
  rows = [*explanation.used, *explanation.others]
  widths = [min(max((len(row.name) for row in rows), default=0), 60),
            min(max((len(row.value) for row in rows), default=0), 40)]
  _print_rows(console, explanation.used, widths)
  if explanation.others:
    console.print("\nNot used to build the run and to trace its step. An evaluation or the "
                  "training loop may use them;\nthose that are set and have no effect end the "
                  "run after its first step:\n")
    _print_rows(console, explanation.others, widths)
  for problem in explanation.problems:
    console.print(f"\nproblem: {problem}", style="bold red", markup=False)


def _print_rows(console: Any, rows: Iterable[Row], widths: list[int]) -> None:
  group = ""
  for row in rows:
    configurable = row.name.rpartition(".")[0]
    if group and configurable != group:
      console.print()
    group = configurable
    console.print(f"{row.name:<{widths[0]}}  {row.value:<{widths[1]}}  {row.source}".rstrip(),
                  style="dim" if row.source.startswith("default") else "bold", markup=False)


def configuration_of(run: str) -> str:
  """The text of the `config.gin` of a run, a workdir or the file itself.

  Raises:
    UsageError: there is none.
  """
  path = pathlib.Path(run)
  path = path / "config.gin" if path.is_dir() else path
  try:
    written = path.read_text(encoding="utf-8")
    differences.written_values(written)
  except (OSError, ValueError) as error:
    reason = "no such file" if isinstance(error, FileNotFoundError) else first_line(error)
    raise UsageError(f"--diff={run}: {path}: {reason}; write the workdir of a run") from error
  return written


def print_differences(before: str, run: str) -> None:
  """What the run that was traced would use otherwise than the one of the text `before`."""
  found = differences.differences(before, operative.text(before))
  if not found:
    print(f"no value differs from {run}")
    return
  columns = [("", "here", run)] + [(each.name, each.now or "--", each.before or "--")
                                   for each in found]
  widths = [max(len(row[i]) for row in columns) for i in range(2)]
  for name, now, then in columns:
    print(f"{name:<{widths[0]}}  {now:<{widths[1]}}  {then}".rstrip())
