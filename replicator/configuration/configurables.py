"""What gin can configure: the names of configurables, and the parameters that gin files set."""

import inspect
from typing import Any

import gin

from replicator.configuration.gin_internals import match, registry
from replicator.errors import UsageError, nearest


def binding_name(scope: str, selector: str, parameter: str) -> str:
  """A parameter as a gin file names it, by the shortest unambiguous name."""
  return f"{scope}/" * bool(scope) + f"{short_name(selector)}.{parameter}"


def short_name(selector: str) -> str:
  """The shortest unambiguous name of a configurable."""
  return registry().minimal_selector(selector)


def configurable_names() -> list[str]:
  """The names of all configurables, sorted, without their modules."""
  return sorted({selector.rpartition(".")[2] for selector, _ in registry().items()
                 if not selector.startswith("gin.")})


def find(selector: str, parameter: str | None = None) -> gin.config.Configurable:
  """The configurable that a name in a gin file stands for; it must have the `parameter`, if given.

  Raises:
    UsageError: no configurable has the name, several have it, or it has no such parameter.
  """
  try:
    found = match(selector)
  except KeyError as error:
    names = ", ".join(registry().matching_selectors(selector))
    raise UsageError(f"'{selector}' may mean any of: {names}; write more of the name") from error
  name = selector.rpartition(".")[2]
  if not found:
    raise UsageError(
        f"nothing configurable is called '{name}'.{nearest(name, configurable_names())}")
  if parameter is None:
    return found
  if parameter in (found.denylist or []) or (found.allowlist and
                                             parameter not in found.allowlist):
    raise UsageError(f"'{name}' gets its '{parameter}' from the program; it cannot be set here")
  known = parameters(found)
  takes_any = any(each.kind == inspect.Parameter.VAR_KEYWORD for each in _signature(found).values())
  if parameter not in known and not takes_any:
    has = f"It has: {', '.join(known)}" if known else "It has none"
    raise UsageError(f"'{name}' has no parameter '{parameter}'.{nearest(parameter, known)} {has}")
  return found


def parameters(configurable: gin.config.Configurable) -> list[str]:
  """The parameters that a gin file may set, in their order."""
  denied = ("self", "cls", *(configurable.denylist or []))
  return [name for name, parameter in _signature(configurable).items() if name not in denied
          and parameter.kind not in _VARIADIC
          and (not configurable.allowlist or name in configurable.allowlist)]


def defaults(configurable: gin.config.Configurable) -> dict[str, Any]:
  """The defaults of the parameters that a gin file may set, in their order."""
  signature = _signature(configurable)
  return {name: signature[name].default for name in parameters(configurable)
          if signature[name].default is not inspect.Parameter.empty}


def constructor(configurable: gin.config.Configurable) -> Any:
  """The function whose parameters gin sets: for a class, its constructor."""
  function = configurable.wrapped
  if isinstance(function, type):
    function = next(getattr(kind, name) for kind in function.__mro__
                    for name in ("__init__", "__new__") if name in vars(kind))
  return inspect.unwrap(function)


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _signature(configurable: gin.config.Configurable) -> dict[str, inspect.Parameter]:
  try:
    return dict(inspect.signature(constructor(configurable)).parameters)
  except ValueError:  # A function in C that does not describe itself may take anything.
    return dict(inspect.signature(lambda **anything: None).parameters)

