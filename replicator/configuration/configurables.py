"""What gin can configure: by which names, with which parameters."""

from typing import Any

import gin

from replicator.errors import UsageError, nearest


def binding_name(scope: str, selector: str, parameter: str) -> str:
  """As a gin file has it, by the shortest name that is not ambiguous."""
  return f"{scope}/" * bool(scope) + f"{short_name(selector)}.{parameter}"


def short_name(selector: str) -> str:
  """The shortest name of a configurable that is not ambiguous."""
  return gin.config._REGISTRY.minimal_selector(selector)


def configurable_names() -> list[str]:
  """The names of all that is configurable, without their modules."""
  return sorted({selector.rpartition(".")[2] for selector, _ in gin.config._REGISTRY.items()
                 if not selector.startswith("gin.")})


def find(selector: str, parameter: str | None = None) -> gin.config.Configurable:
  """The configurable of a name, as a gin file has it, and with a parameter.

  Raises:
    UsageError: there is none, or several, or it has no such parameter; with the nearest that is.
  """
  try:
    found = gin.config._parse_context().get_configurable(selector)
  except KeyError as error:
    names = ", ".join(gin.config._REGISTRY.matching_selectors(selector))
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
  if not gin.config._might_have_parameter(found.wrapped, parameter):
    known = parameters(found)
    has = f"It has: {', '.join(known)}" if known else "It has none"
    raise UsageError(f"'{name}' has no parameter '{parameter}'.{nearest(parameter, known)} {has}")
  return found


def parameters(configurable: gin.config.Configurable) -> list[str]:
  """Those that a gin file may set, in their order."""
  spec = gin.config._get_cached_arg_spec(constructor(configurable))
  denied = ("self", "cls", *(configurable.denylist or []))
  return [name for name in (*spec.args, *spec.kwonlyargs) if name not in denied
          and (not configurable.allowlist or name in configurable.allowlist)]


def constructor(configurable: gin.config.Configurable) -> Any:
  """The function whose parameters are those of the configurable."""
  function = configurable.wrapped
  if isinstance(function, type):
    function = gin.config._find_class_construction_fn(function)
  while hasattr(function, "__wrapped__"):
    function = function.__wrapped__
  return function
