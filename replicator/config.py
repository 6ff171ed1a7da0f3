"""Reads gin files and command-line bindings; mistakes become one line with a remedy."""

import contextlib
import inspect
import logging
import os
import re
import tokenize
from collections.abc import Iterator, Sequence
from typing import TextIO

import gin
import keras

from replicator import core, loop, optimizers, schedules  # noqa: F401  (their gin names)
from replicator.errors import UsageError, first_line, nearest


def _register(optimizer: type[keras.optimizers.Optimizer]) -> None:
  """Makes a Keras optimizer configurable by those parameters that it names."""
  def make(*args, **kwargs):
    return optimizer(*args, **kwargs)
  signature = inspect.signature(optimizer)
  make.__signature__ = signature.replace(parameters=[  # type: ignore[attr-defined]
      p for p in signature.parameters.values() if p.kind != p.VAR_KEYWORD])
  gin.external_configurable(make, name=optimizer.__name__, module="keras.optimizers")


for _optimizer in (keras.optimizers.Adam, keras.optimizers.AdamW, keras.optimizers.RMSprop,
                   keras.optimizers.SGD):
  _register(_optimizer)


def parse(files: Sequence[str], bindings: Sequence[str]) -> None:
  """Parses gin files in order, then bindings, which override them.

  A file includes another by a path relative to itself or to the working directory.

  Raises:
    UsageError: a missing file, a syntax error, or a name that nothing has.
  """
  gin.clear_config()
  for file in files:
    if not os.path.isfile(file):
      raise UsageError(f"--gin_file={file}: no such file")
  logging.disable(logging.ERROR)  # gin reports every place where an included file is not.
  try:
    gin.parse_config_files_and_bindings(list(files), list(bindings))
  except tokenize.TokenError as error:
    raise UsageError(f"--gin_param: not valid gin: {error.args[0]}") from error
  except SyntaxError as error:
    where = f"{error.filename}:{error.lineno}" if error.filename else f"--gin_param {[*bindings]}"
    written = (error.text or "").strip() or error.msg
    raise UsageError(f"{where}: not valid gin: {written}") from error
  except ModuleNotFoundError as error:
    raise UsageError(_explain(error)) from error
  except OSError as error:
    raise UsageError(f"a gin file includes a missing one: {first_line(error)}") from error
  except (ValueError, TypeError, RuntimeError) as error:
    raise UsageError(_explain(error)) from error
  finally:
    logging.disable(logging.NOTSET)


_open_files: list[str] = []


@contextlib.contextmanager
def _open(name: str) -> Iterator[TextIO]:
  """Opens a gin file, which may be one that an open file includes."""
  path = _find(name)
  if path in _open_files:
    raise UsageError(f"{path}: includes itself")
  _open_files.append(path)
  try:
    with open(path) as file:
      yield file
  except tokenize.TokenError as error:
    message, (line, _) = error.args
    raise SyntaxError(message, (path, line, 0, "")) from error
  finally:
    _open_files.pop()


def _find(name: str) -> str:
  """Where an included file is: beside the one that includes it, or else where it says."""
  if _open_files:
    beside = os.path.normpath(os.path.join(os.path.dirname(_open_files[-1]), name))
    if os.path.isfile(beside):
      return beside
  return name


# Before gin's own reader, which knows only the working directory.
gin.config._FILE_READERS.insert(0, (_open, lambda name: os.path.isfile(_find(name))))


def describe() -> str:
  """Every binding of the configuration, as gin text."""
  return gin.config_str()


def _explain(error: Exception) -> str:
  """One line: where, what was written, what it may have meant."""
  text = str(error)
  location = re.search(r'In file "([^"]+)", line (\d+)', text)
  where = f"{location[1]}:{location[2]}: " if location else "--gin_param: "
  unknown_parameter = re.search(r"Configurable '([^']+)' doesn't have a parameter named '([^']+)'",
                                text)
  if unknown_parameter:
    selector, parameter = unknown_parameter.groups()
    name = selector.rpartition(".")[2].rpartition(":")[2]
    known = _parameters(selector)
    return (f"{where}'{name}' has no parameter '{parameter}'.{nearest(parameter, known)} "
            f"It has: {', '.join(known)}")
  unknown_name = re.search(r"No configurable matching (?:reference )?'?[@%]?([\w./]+)", text)
  if unknown_name:
    name = unknown_name[1].split("/")[-1]
    hint = nearest(name.rpartition(".")[2], _names())
    return f"{where}nothing configurable is called '{name}'.{hint}"
  macro = re.search(r"No bindings specified for '(.+)/gin.macro'", text)
  if macro:
    return f"the macro %{macro[1]} has no value; write {macro[1]} = ..."
  return where + first_line(error)


def _names() -> list[str]:
  return sorted({selector.rpartition(".")[2] for selector, _ in gin.config._REGISTRY.items()})


def _parameters(selector: str) -> list[str]:
  matches = gin.config._REGISTRY.matching_selectors(selector.replace(":", "."))
  wrapped = gin.config._REGISTRY[matches[0]].wrapped if matches else None
  if wrapped is None:
    return []
  denied = gin.config._REGISTRY[matches[0]].denylist or []
  return [p for p in inspect.signature(wrapped).parameters if p not in ("self", *denied)]
