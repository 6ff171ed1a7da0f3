"""The `config.gin` of a run: every value that it used, enough to make the same run again."""

import dataclasses
import pathlib
import tokenize
from typing import Any

import gin
from gin import config_parser

from replicator import durable, gin_checks, gin_files
from replicator.configurables import constructor
from replicator.errors import UsageError, first_line
from replicator.gin_checks import Values
from replicator.gin_files import MACRO, RECORD_HEADER


def text(earlier: str = "") -> str:
  """All that is configured, and the values of all calls so far with their defaults, as gin.

  Not what is configured for something that an overridden value referred to, and that is not used.

  Args:
    earlier: the text of a configuration whose run went further: what it called, this one will
      call too, if only at its next evaluation.
  """
  called = {selector for _, selector in gin.config._OPERATIVE_CONFIG}
  unused = gin_checks.dropped_by(gin_files.last_read()) - called
  values: Values = {key: dict(bound) for key, bound in gin.config._CONFIG.items()
                    if key[1] not in unused}
  for key, used in gin.config._OPERATIVE_CONFIG.items():
    values.setdefault(key, {}).update(used)
  for key, names in _called_by(earlier, values).items():
    would_use = values_of_call(*key)
    values.setdefault(key, {}).update({n: would_use[n] for n in names if n in would_use})
  return f"{RECORD_HEADER}\n\n{gin.config._config_str(_without_unused_macros(values))}"


def after_first_step(path: pathlib.Path, resumed: bool, evaluated: bool) -> list[str]:
  """Checks that all that was set had an effect, and writes `config.gin`, at once or not at all.

  Args:
    path: of the file.
    resumed: whether the run goes on after a checkpoint, so that this process has not evaluated.
    evaluated: whether the run has evaluated before its first step, if it ever does.

  Returns:
    lines for the user: what a resumed run has changed, and bindings that nothing used so far: of
    an earlier run's `config.gin`, or for an evaluation to come.

  Raises:
    UsageError: a binding that nothing used.
  """
  earlier = _text_of(path) if resumed else ""
  called = calls_in(earlier)
  for key, used in gin.config._OPERATIVE_CONFIG.items():
    called.setdefault(key, {}).update(used)
  found = gin_checks.unreached(gin_files.last_read(), called)
  mistakes = [each for each in found if not each.binding.is_record
              and (each.certain or (evaluated and not resumed))]
  if mistakes:
    others = ", ".join(f"{each.binding.where}: {each.binding.name}" for each in mistakes[1:])
    raise UsageError(f"{mistakes[0]}{f' (and {others})' if others else ''}")
  now = text(earlier)
  durable.write_whole(path, now)
  changes = differences(earlier, now) if earlier else []
  recorded = [each.binding for each in found if each.binding.is_record]
  return ([f"changed: {change}" for change in changes]
          + [f"warning: {each}" for each in found if not each.binding.is_record]
          + [f"note: nothing used {len(recorded)} values of {recorded[0].file}, such as "
             f"{recorded[0].name}" for _ in recorded[:1]])


def _text_of(path: pathlib.Path) -> str:
  try:
    return path.read_text(encoding="utf-8")
  except (OSError, UnicodeDecodeError):
    return ""


def values_of_call(scope: str, selector: str) -> dict[str, Any]:
  """What a call in a scope would get: bindings, and defaults that gin can write down."""
  configurable = gin.config._REGISTRY[selector]
  defaults = gin.config._get_default_configurable_parameter_values(
      constructor(configurable), configurable.allowlist, configurable.denylist)
  return {**defaults, **gin.config._get_bindings(selector, scope.split("/") if scope else [""])}


def calls_in(written: str) -> Values:
  """The calls that a configuration's text has values for, of what is configurable now.

  A text that is not gin has none.
  """
  calls: Values = {}
  try:
    statements = _statements(written)
  except _NOT_GIN:
    return {}
  for scope, selector, parameter, value in statements:
    names = gin.config._REGISTRY.matching_selectors(selector)
    if parameter and len(names) == 1:
      calls.setdefault((scope, names[0]), {})[parameter] = value
  return calls


def _called_by(earlier: str, values: Values) -> Values:
  """The calls of an earlier run that this one will make too.

  Not those of what the earlier configuration referred to and this one does not.
  """
  calls = calls_in(earlier)
  before = {reference.selector.rpartition(".")[2] for used in calls.values()
            for reference in _flat(used) if isinstance(reference, _Reference)}
  now = {reference.configurable.name for reference in gin.config.iterate_references(values)}
  called = {selector for _, selector in gin.config._OPERATIVE_CONFIG}
  return {key: used for key, used in calls.items() if key not in gin.config._OPERATIVE_CONFIG
          and (key[1] in called or gin.config._REGISTRY[key[1]].name not in before - now)}


def _without_unused_macros(values: Values) -> Values:
  """Only macros that a value refers to, or another such macro, with their values."""
  kept = {key: used for key, used in values.items() if key[1] not in (MACRO, "gin.constant")}
  waiting = list(gin.config.iterate_references(kept))
  while waiting:
    reference = waiting.pop()
    if reference.configurable.selector == MACRO and reference.config_key not in kept:
      kept[reference.config_key] = gin.config._CONFIG[reference.config_key]
      waiting += gin.config.iterate_references([kept[reference.config_key]["value"]])
  return kept


# ---- Comparing ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Difference:
  """A value that is not the same in two configurations.

  Attributes:
    name: `scope/configurable.parameter`.
    before: the earlier value as gin text; None if the earlier configuration has none.
    now: the later value, or None.
  """

  name: str
  before: str | None
  now: str | None

  def __str__(self) -> str:
    if self.before is None:
      return f"{self.name} = {self.now}, new"
    return f"{self.name} = {self.now}, was {self.before}" if self.now is not None else (
        f"{self.name} no more, was {self.before}")


def differences(before: str, now: str) -> list[Difference]:
  """What differs between the texts of two configurations, by name; macros count by their values.

  Nothing needs to be registered: the earlier text may be of an older version, or another program.

  Raises:
    ValueError: a text is not gin.
  """
  old, new = written_values(before), written_values(now)
  return [Difference(name, old.get(name), new.get(name)) for name in sorted({*old, *new})
          if old.get(name) != new.get(name)]


def written_values(written: str) -> dict[str, str]:
  """The values of a configuration's text: `{name: value as gin text}`, macros replaced.

  Raises:
    ValueError: the text is not gin.
  """
  try:
    statements = _statements(written)
  except _NOT_GIN as error:
    raise ValueError(f"not valid gin: {first_line(error)}") from error
  macros = {"/".join(filter(None, [scope, selector])): value
            for scope, selector, parameter, value in statements if not parameter}
  return {f"{scope}/" * bool(scope) + f"{selector}.{parameter}": repr(_expanded(value, macros))
          for scope, selector, parameter, value in statements if parameter}


_NOT_GIN = (SyntaxError, tokenize.TokenError, RecursionError)


@dataclasses.dataclass(frozen=True)
class _Reference:
  """`@name`, `@name()` or `%NAME`, as it is written."""

  scoped_selector: str
  evaluate: bool = False
  is_macro: bool = False

  @property
  def selector(self) -> str:
    return self.scoped_selector.rpartition("/")[2]

  def __repr__(self) -> str:
    return f"{'%' if self.is_macro else '@'}{self.scoped_selector}{'()' * self.evaluate}"


class _Delegate(config_parser.ParserDelegate):
  def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> _Reference:
    return _Reference(scoped_configurable_name, evaluate)

  def macro(self, macro_name: str) -> _Reference:
    return _Reference(macro_name, is_macro=True)


def _statements(written: str) -> list[tuple[str, str, str, Any]]:
  """(scope, selector, parameter, value) of each binding, whatever the names."""
  return [statement[:4] for statement in config_parser.ConfigParser(written, _Delegate())
          if isinstance(statement, config_parser.BindingStatement)]


def _expanded(value: Any, macros: dict[str, Any]) -> Any:
  if isinstance(value, _Reference) and value.is_macro and value.scoped_selector in macros:
    return _expanded(macros[value.scoped_selector], macros)
  if isinstance(value, (list, tuple)):
    return type(value)(_expanded(element, macros) for element in value)
  if isinstance(value, dict):
    return {key: _expanded(element, macros) for key, element in value.items()}
  return value


def _flat(value: Any) -> list:
  if isinstance(value, dict):
    return [leaf for element in value.values() for leaf in _flat(element)]
  if isinstance(value, (list, tuple)):
    return [leaf for element in value for leaf in _flat(element)]
  return [value]
