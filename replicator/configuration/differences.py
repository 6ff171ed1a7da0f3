"""Reads the texts of configurations without their programs, and compares them."""

import os
import pathlib
import tokenize
from collections.abc import Sequence
from typing import Any

from replicator.configuration.literals import literal
from replicator.console import gin_files
from replicator.errors import first_line

from gin import config_parser


def differences(before: str, now: str) -> dict[str, tuple[str | None, str | None]]:
  """Compares the values in the texts of two configurations, with macros replaced.

  Returns the differences `{name: (value before, value now)}`, as gin text; None if not set.

  Raises:
    ValueError: a text is not gin.
  """
  old, new = ({name: literal(value) for name, value in values(text).items()}
              for text in (before, now))
  return {name: (old.get(name), new.get(name)) for name in sorted({*old, *new})
          if old.get(name) != new.get(name)}


def values(written: str) -> dict[str, Any]:
  """Reads the values in the text of a configuration, `{name: value}`, with macros replaced.

  `literal` turns a value, even a `Reference`, back into gin text.

  Raises:
    ValueError: the text is not gin.
  """
  statements = bindings_in(written)
  macros = {"%" + "/".join(filter(None, [scope, selector])): value
            for scope, selector, parameter, value in statements if not parameter}
  return {f"{scope}/" * bool(scope) + f"{selector}.{parameter}": _expanded(value, macros)
          for scope, selector, parameter, value in statements if parameter}


_NOT_GIN = SyntaxError, tokenize.TokenError, RecursionError  # The errors of gin's parser.


class Reference(str):
  """A reference `@name`, `@name()` or `%NAME`, as written."""

  @property
  def selector(self) -> str:
    """The name without its scopes."""
    return self.strip("@%()").rpartition("/")[2]

  __repr__ = str.__str__


class _Delegate(config_parser.ParserDelegate):
  def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> Reference:
    return Reference(f"@{scoped_configurable_name}{'()' * evaluate}")

  def macro(self, macro_name: str) -> Reference:
    return Reference(f"%{macro_name}")


def written_in(path: str, inside: Sequence[str] = ()) -> list[str]:
  """Reads the statements of a gin file and of the files it includes, in order, without comments.

  Returns the text of a file that is not gin, and nothing for an unreadable file; parsing it for a
  run reports the error. `inside` lists the files that include this one.
  """
  try:
    text = pathlib.Path(gin_files.found(path)).read_text(encoding="utf-8-sig", errors="replace")
  except OSError:
    return []
  found = []
  try:
    for statement in config_parser.ConfigParser(text, _Delegate()):
      if not isinstance(statement, config_parser.IncludeStatement):
        found.append(repr(statement[:-1]))  # Without its location.
      elif path not in inside:
        found += written_in(included(statement.filename, path), [*inside, path])
  except _NOT_GIN:
    return [text]
  return found


def included(name: str, by: str | None) -> str:
  """Returns the path of an included file: next to the including one, or found as `--gin_file`."""
  beside = os.path.normpath(os.path.join(os.path.dirname(by), name)) if by else name
  return beside if os.path.isfile(beside) else gin_files.found(name)


def bindings_in(written: str) -> list[tuple[str, str, str, Any]]:
  """Reads bindings as (scope, selector, parameter, value); names need not be registered.

  Raises:
    ValueError: the text is not gin.
  """
  try:
    return [tuple(statement)[:4]
            for statement in config_parser.ConfigParser(written, _Delegate())
            if isinstance(statement, config_parser.BindingStatement)]
  except _NOT_GIN as error:
    raise ValueError(f"not valid gin: {first_line(error)}") from error


def _expanded(value: Any, macros: dict[str, Any]) -> Any:
  if isinstance(value, Reference) and value in macros:
    return _expanded(macros[value], macros)
  if isinstance(value, (list, tuple)):
    return type(value)(_expanded(element, macros) for element in value)
  if isinstance(value, dict):
    return {key: _expanded(element, macros) for key, element in value.items()}
  return value


def references_in(value: Any) -> list[Reference]:
  """Returns the references inside nested lists, tuples and values of dicts, in order."""
  if isinstance(value, dict):
    return references_in(list(value.values()))
  if isinstance(value, (list, tuple)):
    return [reference for element in value for reference in references_in(element)]
  return [value] if isinstance(value, Reference) else []
