"""The private names of gin that the engine needs. No other file uses any.

gin has no public way to list configurables, bindings and the calls of a program, or to parse
statements one at a time. A test reports every name here that a new version of gin moves.
"""

import types
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from replicator.configuration.literals import literal
from replicator.console import kernel

import gin
from gin import config_parser
from gin.selector_map import SelectorMap

Values = dict[tuple[str, str], dict[str, Any]]  # `{(scope, selector): {parameter: value}}`


def _readable(value: Any) -> str | None:
  """Returns the text of a value if gin can read it back, otherwise None."""
  text = literal(value)
  try:
    return text if gin.config.parse_value(text) == value else None
  except SyntaxError:
    return None


# Gin would sort dicts, and omit values with an infinite float.
gin.config.pprint = types.SimpleNamespace(pformat=literal)
gin.config._format_value = _readable

if kernel.is_kernel():
  gin.enter_interactive_mode()  # A cell that runs again redefines its configurables.


def registry() -> SelectorMap:
  """Returns all configurables: a `gin.config.Configurable` for each full name."""
  return gin.config._REGISTRY


def current_bindings() -> Values:
  """Returns the values currently bound by gin files, the command line, or the program."""
  return gin.config._CONFIG


def operative_config() -> Values:
  """Returns the values of all calls so far, with defaults, except those that callers passed."""
  return gin.config._OPERATIVE_CONFIG


def format_config(values: Values) -> str:
  """Returns the text of a gin file that binds `values`, without those that gin cannot write."""
  return gin.config._config_str(values)


def parse_scope() -> AbstractContextManager[gin.config.ParseContext]:
  """Makes statements in the body parse as those of one file, with its own imports."""
  return gin.config._parse_scope()


def match(selector: str) -> gin.config.Configurable | None:
  """Returns the configurable that a name means in the file being parsed, or None.

  Raises:
    KeyError: the name is ambiguous.
  """
  return gin.config._parse_context().get_configurable(selector)


def add_imports(statements: Iterable[config_parser.ImportStatement]) -> None:
  """Adds import statements to those that `format_config` writes."""
  gin.config._IMPORTS.update(statements)


def remember() -> Callable[[], None]:
  """Returns a function that restores gin's current bindings, imports, calls and lock."""
  stores: tuple[Any, ...] = (gin.config._CONFIG, gin.config._OPERATIVE_CONFIG, gin.config._IMPORTS,
                             gin.config._SINGLETONS)
  contents, was_locked = [store.copy() for store in stores], gin.config_is_locked()

  def put_back() -> None:
    for store, content in zip(stores, contents, strict=True):
      store.clear()
      store.update(content)
    gin.config._set_config_is_locked(was_locked)

  return put_back


def unlock() -> None:
  """Lets the program import modules with configurables after the configuration is final."""
  gin.config._set_config_is_locked(False)


class LocatedParser(config_parser.ConfigParser):
  """gin's parser, which also sets two line numbers, counted from 1, in its delegate.

  `line_of_statement` is the line of the current statement, and `line` that of the latest `@name`.
  """

  def _current_location(self, ignore_char_num: bool = False) -> config_parser.Location:
    location = super()._current_location(ignore_char_num)
    if ignore_char_num:  # gin calls it this way at the beginning of a statement.
      self._delegate.line_of_statement = location.line_num
    return location

  def _maybe_parse_configurable_reference(self) -> tuple[bool, Any]:
    self._delegate.line = self.current_token.start[0]
    return super()._maybe_parse_configurable_reference()
