"""Configurations as texts, read without their programs, and the differences between two."""

import dataclasses
import tokenize
from typing import Any

from gin import config_parser

from replicator.errors import first_line


@dataclasses.dataclass(frozen=True)
class Difference:
  """A value that differs between two configurations, as gin text; None where it is not set."""

  name: str
  before: str | None
  now: str | None

  def __str__(self) -> str:
    if self.before is None:
      return f"{self.name} = {self.now}, new"
    if self.now is None:
      return f"{self.name} is no longer set, was {self.before}"
    return f"{self.name} = {self.now}, was {self.before}"


def differences(before: str, now: str) -> list[Difference]:
  """The differences between the texts of two configurations, by name, with macros replaced.

  Raises:
    ValueError: a text is not gin.
  """
  old, new = written_values(before), written_values(now)
  return [Difference(name, old.get(name), new.get(name)) for name in sorted({*old, *new})
          if old.get(name) != new.get(name)]


def written_values(written: str) -> dict[str, str]:
  """The values in the text of a configuration: `{name: value as gin text}`, macros replaced.

  Raises:
    ValueError: the text is not gin.
  """
  return {name: repr(value) for name, value in values(written).items()}


def values(written: str) -> dict[str, Any]:
  """The values in the text of a configuration, with `Reference`s: `{name: value}`.

  Raises:
    ValueError: the text is not gin.
  """
  try:
    statements = bindings_in(written)
  except NOT_GIN as error:
    raise ValueError(f"not valid gin: {first_line(error)}") from error
  macros = {"/".join(filter(None, [scope, selector])): value
            for scope, selector, parameter, value in statements if not parameter}
  return {f"{scope}/" * bool(scope) + f"{selector}.{parameter}": _expanded(value, macros)
          for scope, selector, parameter, value in statements if parameter}


NOT_GIN = (SyntaxError, tokenize.TokenError, RecursionError)


@dataclasses.dataclass(frozen=True)
class Reference:
  """A reference `@name`, `@name()` or `%NAME`, as it is written."""

  scoped_selector: str
  evaluate: bool = False
  is_macro: bool = False

  @property
  def selector(self) -> str:
    """The name without its scopes."""
    return self.scoped_selector.rpartition("/")[2]

  def __repr__(self) -> str:
    return f"{'%' if self.is_macro else '@'}{self.scoped_selector}{'()' * self.evaluate}"


class _Delegate(config_parser.ParserDelegate):
  def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> Reference:
    return Reference(scoped_configurable_name, evaluate)

  def macro(self, macro_name: str) -> Reference:
    return Reference(macro_name, is_macro=True)


def bindings_in(written: str) -> list[tuple[str, str, str, Any]]:
  """The bindings as (scope, selector, parameter, value), with names that need not be registered."""
  return [statement[:4] for statement in config_parser.ConfigParser(written, _Delegate())
          if isinstance(statement, config_parser.BindingStatement)]


def _expanded(value: Any, macros: dict[str, Any]) -> Any:
  if isinstance(value, Reference) and value.is_macro and value.scoped_selector in macros:
    return _expanded(macros[value.scoped_selector], macros)
  if isinstance(value, (list, tuple)):
    return type(value)(_expanded(element, macros) for element in value)
  if isinstance(value, dict):
    return {key: _expanded(element, macros) for key, element in value.items()}
  return value


def references_in(value: Any) -> list[Reference]:
  """The references inside nested lists, tuples and values of dicts, in order."""
  if isinstance(value, dict):
    return references_in(list(value.values()))
  if isinstance(value, (list, tuple)):
    return [reference for element in value for reference in references_in(element)]
  return [value] if isinstance(value, Reference) else []
