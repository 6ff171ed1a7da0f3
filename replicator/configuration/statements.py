"""Reads the statements of gin files and the command line, with their locations."""

import dataclasses
import os
import re
import tokenize
from collections.abc import Callable, Sequence
from typing import Any

from replicator.configuration.configurables import binding_name, find
from replicator.configuration.differences import included
from replicator.configuration.gin_internals import (
  LocatedParser,
  add_imports,
  current_bindings,
  parse_scope,
  remember,
)
from replicator.console import gin_files
from replicator.console.error_line import line_of
from replicator.errors import UsageError, first_line

import gin
from gin import config_parser

Find = Callable[..., gin.config.Configurable]  # With the parameters of `configurables.find`.
MACRO = "gin.macro"  # The selector of `NAME = value`, whose scope is the name.
CONSTANT = "gin.constant"  # The selector of a program's `gin.constant(NAME, value)`, likewise.
RECORD_HEADER = "# Every value that a run used. Written by replicator."  # Starts a `config.gin`.


@dataclasses.dataclass(frozen=True, eq=False)
class Binding:
  """A statement `scope/configurable.parameter = value`."""

  scope: str  # Such as 'generator' or 'a/b'; the name of a macro; or ''.
  selector: str  # The full name of the configurable, such as 'replicator.train'.
  parameter: str
  value: Any  # As gin holds it: references are `gin.config.ConfigurableReference`s.
  file: str | None = None  # None for the command line.
  line: int = 0  # The first line of the statement; 0 for the command line.
  is_record: bool = False  # Whether the file is the `config.gin` of a run, not written by hand.

  @property
  def key(self) -> tuple[str, str, str]:
    """The parameter in its scope; of statements with equal keys, the last one wins."""
    return self.scope, self.selector, self.parameter

  @property
  def is_macro(self) -> bool:
    """Whether the statement sets a macro: `NAME = value`."""
    return self.selector == MACRO

  @property
  def name(self) -> str:
    """The left side of the statement: `generator/adam.learning_rate`."""
    return self.scope if self.is_macro else binding_name(self.scope, self.selector, self.parameter)

  @property
  def where(self) -> str:
    """`configs/a.gin:3`, or `--gin_param`."""
    return _place(self.file, self.line)

  def references(self) -> list[gin.config.ConfigurableReference]:
    """Returns all `@name` and `%NAME` references in the value."""
    return list(gin.config.iterate_references([self.value]))


def read(files: Sequence[str], params: Sequence[str], find: Find = find,
         implied: Sequence[str] = ()) -> list[Binding]:
  """Binds the values of gin files, in order, and then those of the command line.

  A file includes others by a path relative to itself, or by a name that `--gin_file` accepts.
  `find` looks up the names that statements bind and refer to. Returns all statements, including
  overridden ones. Those in `implied` come last, and count as a record.

  Raises:
    UsageError: a file is missing, has a syntax error, uses an unknown name, or sets a value twice.
  """
  global _last_read
  _last_read = []  # It stays empty after an error.
  reader = _Reader(find)
  for file in files:
    path = gin_files.found(file)
    if not os.path.isfile(path):
      raise UsageError(f"--gin_file={file}: no such file{gin_files.named_like(file)}")
    reader.read_file(path)
  for param in params:
    reader.read(param, None)
  for param in implied:
    reader.read(param, None, is_record=True)
  _last_read = reader.bindings
  return _last_read


_last_read: list[Binding] = []


def last_read() -> list[Binding]:
  """Returns all statements of the current configuration; none after `gin.clear_config()`."""
  return _last_read if any(selector != CONSTANT for _, selector in current_bindings()) else []


def remember_configuration() -> Callable[[], None]:
  """Returns a function that restores gin's current configuration."""
  read_before, put_back_gin = _last_read, remember()

  def put_back() -> None:
    global _last_read
    _last_read = read_before
    put_back_gin()

  return put_back


class _Reader:
  def __init__(self, find: Find):
    self._find = find
    self.bindings: list[Binding] = []
    self._open: list[str] = []

  def read_file(self, path: str) -> None:
    try:
      with open(path, encoding="utf-8-sig") as file:
        text = file.read()
    except (OSError, UnicodeDecodeError) as error:
      raise UsageError(f"{path}: cannot be read: {first_line(error)}") from error
    self._open.append(path)
    self.read(text, path)
    self._open.pop()

  def read(self, text: str, file: str | None, is_record: bool = False) -> None:
    """Reads the statements of a file, or of one `--gin_param` if `file` is None."""
    lines: dict[tuple, int] = {}
    delegate = _Delegate(self._find, text)
    delegate.is_record |= is_record
    with parse_scope() as context:
      try:
        for statement in LocatedParser(text, delegate):
          delegate.line = statement.location.line_num
          self._take(statement, file, context, lines, delegate.is_record)
      except _PlacedError:
        raise
      except (tokenize.TokenError, SyntaxError) as error:
        raise _not_gin(error, file, text, delegate.line_of_statement) from error
      except Exception as error:  # An imported module may raise anything.
        raise _PlacedError(f"{_place(file, delegate.line)}: {line_of(error)}") from error
      add_imports(context.imports)

  def _take(self, statement: Any, file: str | None, context: gin.config.ParseContext,
            lines: dict[tuple, int], is_record: bool) -> None:
    if isinstance(statement, config_parser.BindingStatement):
      scope, selector, parameter, value, location = statement
      if not parameter:
        scope, selector, parameter = "/".join(filter(None, [scope, selector])), MACRO, "value"
      else:
        selector = self._find("/".join(filter(None, [scope, selector])), parameter).selector
      gin.bind_parameter((scope, selector, parameter), value)
      line = location.line_num if file else 0
      binding = Binding(scope, selector, parameter, value, file, line, is_record)
      if file and binding.key in lines:
        raise UsageError(f"{binding.name} is set here and on line {lines[binding.key]}; keep one")
      lines[binding.key] = line
      self.bindings.append(binding)
    elif isinstance(statement, config_parser.IncludeStatement):
      self._include(statement.filename)
    elif isinstance(statement, config_parser.ImportStatement):
      try:
        context.process_import(statement)
      except SyntaxError as error:  # In the module; the statement itself is valid.
        raise UsageError(first_line(error)) from error
    else:
      self._find(statement.selector)

  def _include(self, name: str) -> None:
    path = included(name, self._open[-1] if self._open else None)
    if not os.path.isfile(path):
      raise UsageError(f"includes '{name}', which exists neither next to this file nor in the "
                       f"working directory{gin_files.named_like(name)}")
    if path in self._open:
      raise UsageError(f"includes '{name}', which includes itself: {' -> '.join(self._open)}")
    self.read_file(path)


class _Delegate(gin.config.ParserDelegate):
  """A delegate that looks up references; the parser sets its line numbers, counted from 1."""

  def __init__(self, find: Find, text: str):
    super().__init__()
    self._find = find
    self._text = text.splitlines()
    self.is_record = text.startswith(RECORD_HEADER)
    self.line_of_statement = 1  # Where the current statement begins.
    self.line = 1  # The line of the latest statement, or of a later `@name`.

  def configurable_reference(self, scoped_selector: str, evaluate: bool) -> Any:
    sets = re.match(r"\s*(?:[\w./]*/)?([\w.]+\.\w+)\s*=", self._text[self.line_of_statement - 1])
    self._find(scoped_selector, value_of=sets[1] if sets else "")
    return super().configurable_reference(scoped_selector, evaluate)


class _PlacedError(UsageError):
  """A UsageError whose message begins with its location."""


def _not_gin(error: Exception, file: str | None, text: str, begin: int) -> UsageError:
  """Returns the error for a statement that begins in line `begin` and is not valid gin."""
  if isinstance(error, SyntaxError):
    reason, line = error.msg, error.lineno or 1
  else:
    reason, (line, _) = error.args
  is_open = "EOF in multi-line" in reason or "unterminated" in reason
  lines = text.splitlines()
  line = begin if is_open else min(line, len(lines))
  written, hint = lines[line - 1].strip(), ""
  if is_open:
    hint = " (a bracket or a string is not closed)"
  elif word := re.search(r"=\s*(true|false|none|null)\b", written):
    hint = f" (write {'None' if word[1] in ('none', 'null') else word[1].capitalize()})"
  elif not re.search("[=:]", written):
    hint = " (write NAME = VALUE)"
  elif "Failed to parse token" in reason:
    hint = " (a string needs quotes, a function @, a macro %)"
  elif line > begin:
    hint = f" (in the value that begins on line {begin})"
  return _PlacedError(f"{_place(file, line)}: not valid gin: {written}{hint}")


def _place(file: str | None, line: int) -> str:
  return f"{file}:{line}" if file else "--gin_param"
