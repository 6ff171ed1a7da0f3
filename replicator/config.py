"""Reads gin files and command-line bindings; mistakes become one line with a remedy."""

import inspect
import logging
import os
import re
from collections.abc import Sequence

import gin
import keras

from replicator import core, loop, optimizers  # noqa: F401  (their gin names)
from replicator.errors import UsageError, nearest

for _optimizer in (keras.optimizers.Adam, keras.optimizers.AdamW, keras.optimizers.RMSprop,
                   keras.optimizers.SGD):
  gin.external_configurable(_optimizer, module="keras.optimizers")


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
    _add_search_paths(os.path.abspath(file))
  logging.disable(logging.ERROR)  # gin reports every place where an included file is not.
  try:
    gin.parse_config_files_and_bindings(list(files), list(bindings))
  except SyntaxError as error:
    where = f"{error.filename}:{error.lineno}" if error.filename else f"--gin_param {error.text!r}"
    written = (error.text or "").strip() or error.msg
    raise UsageError(f"{where}: not valid gin: {written}") from error
  except OSError as error:
    raise UsageError(f"a gin file includes a missing one: {_first_line(error)}") from error
  except (ValueError, TypeError, RuntimeError) as error:
    raise UsageError(_explain(error)) from error
  finally:
    logging.disable(logging.NOTSET)


def _add_search_paths(file: str) -> None:
  """Lets gin find what a file, and the files that it includes, include relative to themselves."""
  folder = os.path.dirname(file)
  gin.add_config_file_search_path(folder)
  with open(file) as text:
    for included in re.findall(r"""^include\s+['"](.+?)['"]""", text.read(), re.MULTILINE):
      if os.path.isfile(os.path.join(folder, included)):
        _add_search_paths(os.path.join(folder, included))


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
    return f"{where}nothing configurable is called '{name}'.{nearest(name, _names())}"
  return where + _first_line(error)


def _first_line(error: Exception) -> str:
  return str(error).strip().splitlines()[0]


def _names() -> list[str]:
  return sorted({selector.rpartition(".")[2] for selector, _ in gin.config._REGISTRY.items()})


def _parameters(selector: str) -> list[str]:
  matches = gin.config._REGISTRY.matching_selectors(selector.replace(":", "."))
  wrapped = gin.config._REGISTRY[matches[0]].wrapped if matches else None
  if wrapped is None:
    return []
  denied = gin.config._REGISTRY[matches[0]].denylist or []
  return [p for p in inspect.signature(wrapped).parameters if p not in ("self", *denied)]
