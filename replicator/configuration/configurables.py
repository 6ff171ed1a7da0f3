"""Configurables: their names in gin files, and the parameters that gin files may set."""

import inspect
import typing
from collections.abc import Mapping
from typing import Any

from replicator.configuration.gin_internals import match, registry
from replicator.errors import UsageError, nearest

import gin


def binding_name(scope: str, selector: str, parameter: str) -> str:
  """Returns the shortest unambiguous name of a parameter for a gin file."""
  return f"{scope}/" * bool(scope) + f"{short_name(selector)}.{parameter}"


def short_name(selector: str) -> str:
  """Returns the shortest unambiguous name of a configurable."""
  return registry().minimal_selector(selector)


def configurable_names() -> list[str]:
  """Returns the names of all configurables, sorted, without their modules."""
  return sorted({selector.rpartition(".")[2] for selector, _ in registry().items()
                 if not selector.startswith("gin.")})


def find(scoped: str, parameter: str | None = None, value_of: str = "") -> gin.config.Configurable:
  """Finds the configurable `scope/name` of a gin file, and checks that it has the `parameter`.

  Raises:
    UsageError: no configurable has the name (then those that fit `value_of`, a
      `configurable.parameter`, are suggested), several have it, or it has no such parameter.
  """
  scope, _, selector = scoped.rpartition("/")
  try:
    found = match(selector)
  except KeyError as error:
    names = ", ".join(registry().matching_selectors(selector))
    raise UsageError(f"'{selector}' may mean any of: {names}; write more of the name") from error
  name = selector.rpartition(".")[2]
  if not found:
    fitting = _makers(value_of)
    hint = (_with_scopes_first(scope, selector, parameter)
            or nearest(name, fitting or configurable_names())
            or (f" Write one of: {', '.join(f'@{each}' for each in fitting)}" if fitting else ""))
    raise UsageError(f"nothing configurable is called '{selector}'.{hint}")
  if parameter is None:
    return found
  known, signature = parameters(found), _signature(found)
  if parameter in (found.denylist or []) or (
      found.allowlist and parameter in signature and parameter not in known):
    raise UsageError(f"'{name}' gets its '{parameter}' from the program; it cannot be set here")
  takes_any = not found.allowlist and any(
      each.kind == inspect.Parameter.VAR_KEYWORD for each in signature.values())
  if parameter not in known and not takes_any:
    has = f"It has: {', '.join(known)}" if known else "It has no parameters"
    raise UsageError(f"'{name}' has no parameter '{parameter}'.{nearest(parameter, known)} {has}")
  return found


def parameters(configurable: gin.config.Configurable) -> list[str]:
  """Returns the parameters that a gin file may set, in order."""
  denied = ("self", "cls", *(configurable.denylist or []))
  return [name for name, parameter in _signature(configurable).items() if name not in denied
          and parameter.kind not in _VARIADIC
          and (not configurable.allowlist or name in configurable.allowlist)]


def defaults(configurable: gin.config.Configurable) -> dict[str, Any]:
  """Returns the defaults of the parameters that a gin file may set, in order."""
  signature = _signature(configurable)
  return {name: signature[name].default for name in parameters(configurable)
          if signature[name].default is not inspect.Parameter.empty}


def _with_scopes_first(scope: str, selector: str, parameter: str | None) -> str:
  """Returns a hint if a configurable is named where a scope belongs; otherwise ''."""
  words = [*filter(None, scope.split("/")), *selector.split(".")]
  for word in words[-1:] if "." in selector else words:
    if word in configurable_names():
      order = [*(other for other in words if other != word), word]
      return f" Scopes come first: write {'/'.join(order)}{f'.{parameter}' if parameter else ''}"
  return ""


def _makers(name: str) -> list[str]:
  """Returns the names of configurables that make the annotated type of `configurable.parameter`."""
  selector, _, parameter = name.rpartition(".")
  found = match(selector) if selector else None
  hint = hints(constructor(found)).get(parameter) if found else None
  kinds = [kind for kind in (hint, *typing.get_args(hint))
           if inspect.isclass(kind) and kind not in _PLAIN]
  return sorted(short_name(selector) for selector, configurable in registry().items()
                if any(is_a(result_of(configurable), kind) for kind in kinds))


def result_of(configurable: gin.config.Configurable) -> Any:
  """Returns a configurable itself if it is a class, otherwise its return annotation or None."""
  function = configurable.wrapped
  return function if inspect.isclass(function) else hints(function).get("return")


def is_a(made: Any, kind: type) -> bool:
  """Returns whether a class is a subclass of `kind`, or has all methods of the protocol `kind`."""
  if not inspect.isclass(made):
    return False
  if typing.Protocol in kind.__bases__:
    return all(hasattr(made, name) for name, value in vars(kind).items()
               if isinstance(value, property) or (
                   inspect.isfunction(value) and (name == "__call__" or name[0] != "_")))
  return typing.get_origin(kind) is None and issubclass(made, kind)


def hints(function: Any) -> dict[str, Any]:
  """Returns the annotations of a function; none if a name in them does not exist at run time."""
  try:
    return typing.get_type_hints(function)
  except (NameError, TypeError, AttributeError):
    return {}


def constructor(configurable: gin.config.Configurable) -> Any:
  """Returns the function whose parameters gin sets: for a class, its constructor."""
  function = configurable.wrapped
  if isinstance(function, type):
    function = next(getattr(kind, name) for kind in function.__mro__
                    for name in ("__init__", "__new__") if name in vars(kind))
  return inspect.unwrap(function)


_PLAIN = (bool, int, float, str, bytes, list, tuple, dict, object, type, type(None))
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _signature(configurable: gin.config.Configurable) -> Mapping[str, inspect.Parameter]:
  try:
    return inspect.signature(constructor(configurable)).parameters
  except ValueError:  # A function in C without a signature may take anything.
    return inspect.signature(lambda **anything: None).parameters

