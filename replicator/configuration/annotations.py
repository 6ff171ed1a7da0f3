"""Checks the types of values in gin files against the annotations in the code."""

import ast
import collections.abc
import contextlib
import inspect
import re
import types
import typing
from collections.abc import Callable
from typing import Any

from replicator.configuration.configurables import (
  configurable_names,
  constructor,
  hints,
  is_a,
  result_of,
)
from replicator.configuration.gin_internals import current_bindings, registry
from replicator.configuration.literals import literal
from replicator.configuration.statements import CONSTANT, MACRO, Binding
from replicator.errors import nearest

import gin

_LITERALS = (bool, int, float, str, bytes, list, tuple, dict, type(None))
_UNKNOWN = object()


def mistake(binding: Binding) -> str | None:
  """Describes what is wrong with the type of the value; None if nothing is."""
  function = constructor(registry()[binding.selector])
  parameter = inspect.signature(function).parameters.get(binding.parameter)
  hint = hints(function).get(binding.parameter, Any)
  value = resolved(binding.value)
  if fits(value, hint) or (parameter and type(value) is type(parameter.default)
                           and value == parameter.default):
    return None
  remedy = _remedy(value, hint)
  written = literal(binding.value)
  shown = written if len(written) <= 60 else f"{written[:57]}..."
  kind = "" if typing.get_origin(hint) is typing.Literal else f", not {_kind(value, hint)}"
  return f"{binding.name} = {shown}: must be {in_words(hint)}{kind}{'.' * bool(remedy)}{remedy}"


def resolved(value: Any) -> Any:
  """Replaces macros and constants in a value; `_UNKNOWN` for a macro without a value."""
  if isinstance(value, gin.config.ConfigurableReference):
    if value.configurable.selector == MACRO:
      bound = current_bindings().get(value.config_key, {})
      return resolved(bound["value"]) if "value" in bound else _UNKNOWN
    if value.configurable.selector == CONSTANT:
      return gin.query_parameter("/".join(value.scopes))
    return value
  if isinstance(value, (list, tuple)):
    return type(value)(resolved(element) for element in value)
  if isinstance(value, dict):
    return {resolved(key): resolved(element) for key, element in value.items()}
  return value


def fits(value: Any, hint: Any) -> bool:
  """Returns whether a value fits an annotation; True for annotations that do not restrict values.

  An int passes as a float, and a list as a tuple. A bool is not a number; a string is not a list.
  """
  origin, arguments = typing.get_origin(hint), typing.get_args(hint)
  if hint in (Any, object) or value is _UNKNOWN or value is gin.REQUIRED:
    return True
  if origin in (typing.Union, types.UnionType):
    return any(fits(value, argument) for argument in arguments)
  if origin is typing.Literal:
    return any(type(value) is type(argument) and value == argument for argument in arguments)
  wanted = origin or hint
  if not inspect.isclass(wanted):  # Such as a TypeVar.
    return True
  if isinstance(value, gin.config.ConfigurableReference):
    return _reference_fits(value, wanted, arguments[-1] if arguments else Any)
  if wanted in (int, float):
    return isinstance(value, (int, wanted)) and not isinstance(value, bool)
  if issubclass(wanted, collections.abc.Mapping) and isinstance(value, dict):
    key, item = arguments or (Any, Any)
    return all(fits(k, key) and fits(each, item) for k, each in value.items())
  if _is_sequence(wanted):
    if not isinstance(value, (list, tuple)):
      return False
    if wanted is tuple and arguments and arguments[-1] is not ...:
      return len(value) == len(arguments) and all(map(fits, value, arguments))
    return all(fits(each, arguments[0] if arguments else Any) for each in value)
  if hasattr(wanted, "__array__"):
    return _admits(isinstance, value, (wanted, bool, int, float, complex, list, tuple))
  return _admits(isinstance, value, wanted)


def _is_sequence(wanted: type) -> bool:
  """Returns whether an annotation means a list; gin has no sets, and strings are not lists."""
  return (not issubclass(wanted, (str, bytes, collections.abc.Mapping))
          and (wanted in (list, tuple, set, frozenset)
               or (wanted.__module__ == "collections.abc"
                   and issubclass(wanted, collections.abc.Iterable))))


def _admits(test: Callable[[Any, Any], bool], value: Any, wanted: Any) -> bool:
  try:
    return test(value, wanted)
  except TypeError:  # A protocol that cannot be checked at run time.
    return True


def _reference_fits(reference: gin.config.ConfigurableReference, wanted: type, returned: Any
                    ) -> bool:
  """Returns whether `@f` or `@f()` fits a class, or a function that returns `returned`."""
  made = result_of(reference.configurable)
  if wanted is Callable:
    return _is_called(made, reference.evaluate, returned)
  if not reference.evaluate:
    return wanted is type or (wanted not in _LITERALS
                              and _admits(isinstance, reference.configurable.wrapped, wanted))
  if not inspect.isclass(made) or made in (Any, object):
    return True
  return _admits(issubclass, made, wanted) or (wanted is float and issubclass(made, int))


def _is_called(made: Any, is_made: bool, returned: Any) -> bool:
  """Returns whether calling `@f`, or `@f()` if `is_made`, gives `returned`; `f` returns `made`."""
  if typing.get_origin(made) is Callable and is_made:
    made, is_made = typing.get_args(made)[-1], False
  if not inspect.isclass(made) or made in (Any, object):
    return True
  if not is_made:
    return _is_one(made, returned, unknown=True)
  if not _can_be_called(made):
    return False
  result = hints(made.__call__).get("return")
  # A network can be called too, but it does not make a network.
  return not _is_one(made, returned) and (
      not inspect.isclass(result) or _is_one(result, returned, unknown=True))


def _can_be_called(kind: type) -> bool:
  return any("__call__" in vars(each) for each in kind.__mro__)


def _is_one(kind: type, hint: Any, unknown: bool = False) -> bool:
  """Returns whether a class fits an annotation, or `unknown` if the annotation is not a class."""
  if typing.get_origin(hint) in (typing.Union, types.UnionType):
    return any(_is_one(kind, each, unknown) for each in typing.get_args(hint))
  if Callable in (hint, typing.get_origin(hint)):
    return _can_be_called(kind)
  if not inspect.isclass(hint) or hint in (Any, object):
    return unknown
  return is_a(kind, hint) or (hint is float and kind is int)


def in_words(hint: Any) -> str:
  """Describes the values that fit an annotation: `int or None`, `a function (@name)`."""
  origin, arguments = typing.get_origin(hint), typing.get_args(hint)
  if hint is type(None):
    return "None"
  if origin in (typing.Union, types.UnionType):
    return " or ".join(in_words(argument) for argument in arguments)
  if origin is typing.Literal:
    return f"one of {', '.join(map(repr, arguments))}"
  if (origin or hint) is Callable:
    made = arguments[-1] if arguments else None
    is_known = inspect.isclass(made) and made not in (Any, object, type(None))
    return f"a function (@name){f' that returns {in_words(made)}' if is_known else ''}"
  if origin is None and inspect.isclass(hint):
    return hint.__name__
  if arguments and _is_sequence(origin) and origin is not tuple:
    return f"a list of {in_words(arguments[0])}"
  return re.sub(r"[\w.]+\.(\w+)", r"\1", str(hint))


def _kind(value: Any, hint: Any) -> str:
  if isinstance(value, gin.config.ConfigurableReference):
    if value.evaluate:
      return "the value it returns"
    made = result_of(value.configurable)
    return ("the function itself" if "a function" not in in_words(hint) or made is None
            else f"one that returns {in_words(made)}")
  if isinstance(value, (list, tuple, dict)) and fits(type(value)(), hint):
    return "one with these elements"
  return type(value).__name__


def _turned(value: Any) -> Any:
  """Adds or removes the parentheses of a reference; returns other values unchanged."""
  if not isinstance(value, gin.config.ConfigurableReference):
    return value
  return gin.config.ConfigurableReference(value.scoped_selector, not value.evaluate)


def _remedy(value: Any, hint: Any) -> str:
  if isinstance(value, gin.config.ConfigurableReference):
    other = _turned(value)
    return f" Write {other!r}" if fits(other, hint) else ""
  if isinstance(value, (list, tuple)) and fits(others := list(map(_turned, value)), hint):
    return f" Write {literal(others)}"
  if isinstance(value, float) and value.is_integer() and fits(int(value), hint):
    return f" Write {int(value)}"
  if not isinstance(value, str):
    return ""
  if typing.get_origin(hint) is typing.Literal:
    return nearest(value, [str(argument) for argument in typing.get_args(hint)])
  with contextlib.suppress(ValueError, SyntaxError):
    if fits(ast.literal_eval(value), hint):
      return f" Write {value} without quotes"
  if "a function" in in_words(hint):
    return f" Write @{value}" if value in configurable_names() else nearest(
        value, configurable_names())
  return ""
