"""The `config.gin` of a run: every value that it used, enough to make the same run again."""

import pathlib
from typing import Any

import gin

from replicator import atomic
from replicator.configuration import checks, statements
from replicator.configuration.checks import Values
from replicator.configuration.configurables import constructor
from replicator.configuration.differences import (
  NOT_GIN,
  Reference,
  bindings_in,
  differences,
  leaves,
)
from replicator.configuration.statements import MACRO, RECORD_HEADER
from replicator.errors import UsageError


def text(earlier: str = "") -> str:
  """All that is configured, and the values of all calls so far with their defaults, as gin.

  Not what is configured for something that an overridden value referred to, and that is not used.

  Args:
    earlier: the text of a configuration whose run went further: what it called, this one will
      call too, if only at its next evaluation.
  """
  called = {selector for _, selector in gin.config._OPERATIVE_CONFIG}
  unused = checks.dropped_by(statements.last_read()) - called
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
  found = checks.unreached(statements.last_read(), called)
  mistakes = [each for each in found if not each.binding.is_record
              and (each.certain or (evaluated and not resumed))]
  if mistakes:
    others = ", ".join(f"{each.binding.where}: {each.binding.name}" for each in mistakes[1:])
    raise UsageError(f"{mistakes[0]}{f' (and {others})' if others else ''}")
  now = text(earlier)
  atomic.write_whole(path, now)
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
    bindings = bindings_in(written)
  except NOT_GIN:
    return {}
  for scope, selector, parameter, value in bindings:
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
            for reference in leaves(used) if isinstance(reference, Reference)}
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
