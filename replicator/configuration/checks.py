"""Mistakes that gin does not report: in macros and types, and values that nothing uses."""

import ast
import contextlib
import dataclasses
import difflib
import pathlib
import re
from collections.abc import Iterator, Sequence

from replicator.configuration import annotations
from replicator.configuration.configurables import parameters, short_name
from replicator.configuration.gin_internals import Values, current_bindings, registry
from replicator.configuration.statements import MACRO, Binding, last_read
from replicator.console import command, gin_files
from replicator.errors import UsageError, nearest

import gin

_MISSPELLED = 0.8  # The similarity of two scopes from which on one is taken for the other.


def check(bindings: Sequence[Binding]) -> None:
  """Checks all statements of a configuration, also those that later ones override.

  Raises:
    UsageError: a macro has no value or is never used, a value is not of the annotated type, or
      `%gin.REQUIRED` was not replaced by a value.
  """
  for binding in bindings:
    _check_macros_in(binding, bindings)
  used = {"/".join(reference.scopes) for binding in bindings for reference in binding.references()
          if reference.configurable.selector == MACRO}
  for binding in bindings:
    # The record of an earlier run may have it for what is gone today.
    if binding.is_macro and binding.scope not in used and not binding.is_record:
      raise UsageError(f"{binding.where}: the macro {binding.name} is never used."
                       f"{_meant_by_macro(binding.name, bindings, used)}")
  for binding in bindings:
    mistake = None if binding.is_macro else annotations.mistake(binding)
    if mistake:
      raise UsageError(f"{binding.where}: {mistake}")
  for binding in effective(bindings):
    if annotations.resolved(binding.value) is gin.REQUIRED:
      raise UsageError(f"{binding.where}: {binding.name} must have a value; write "
                       f"{binding.name} = ... in a file after this one, or with --gin_param")


def _check_macros_in(binding: Binding, bindings: Sequence[Binding]) -> None:
  for reference in binding.references():
    if (reference.configurable.selector == MACRO
        and reference.config_key not in current_bindings()):
      name = "/".join(reference.scopes)
      macros = {other.scope for other in bindings if other.is_macro}
      raise UsageError(f"{binding.where}: the macro %{name} has no value."
                       f"{nearest(name, macros)} Write {name} = ...")
  try:
    annotations.resolved(binding.value)
  except RecursionError as error:
    raise UsageError(f"{binding.where}: {binding.name} = {binding.value!r}: the macro refers to "
                     "itself") from error


def _meant_by_macro(name: str, bindings: Sequence[Binding], used: set[str]) -> str:
  """A hint on what `steps = 100` may mean: a parameter with that name, or another macro."""
  scope, _, parameter = name.rpartition("/")
  referred = {reference.configurable.selector for binding in bindings
              for reference in binding.references()}
  known = sorted((short_name(selector), each) for selector, c in registry().items()
                 if selector in referred or not selector.startswith(("keras.", "tf.", "gin."))
                 for each in parameters(c))
  owners = [owner for owner, each in known if each == parameter]
  # The owners that the configuration names, or else all.
  named = set(map(short_name, referred | {binding.selector for binding in bindings}))
  owners = [owner for owner in owners if owner in named] or owners
  if owners:
    return " Did you mean " + " or ".join(
        f"{scope}/" * bool(scope) + f"{owner}.{parameter}" for owner in owners[:3]) + "?"
  return (nearest(name, used) or nearest(parameter, (".".join(each) for each in known))
          or f" Write %{name} where it is the value, or remove it")


def effective(bindings: Sequence[Binding]) -> list[Binding]:
  """The bindings that no later one overrides, in order."""
  last = {binding.key: binding for binding in bindings}
  return [binding for binding in bindings if last[binding.key] is binding]


@dataclasses.dataclass(frozen=True)
class Unused:
  """A binding that had no effect so far."""

  binding: Binding
  reason: str  # Why it had no effect, in one line.
  # Whether it can have none later either: its configurable was called, but in other scopes, or with
  # a value that the program passed.
  certain: bool
  misspelled: bool = False  # Whether its scope is almost that of a call.

  def __str__(self) -> str:
    return f"{self.binding.where}: {self.binding.name} is never used: {self.reason}"


def unused(bindings: Sequence[Binding], called: Values) -> list[Unused]:
  """The bindings that no call in `called` used, in order.

  A binding is no mistake if only an overridden value refers to its configurable: whoever replaces
  `SNGAN.optimizer = @adam` of an included file cannot remove that file's `adam.beta_1`.
  """
  dropped = set(map(id, dropped_by(bindings)))
  scopes = {scope for scope, _ in called}
  found = []
  for binding in effective(bindings):
    current = current_bindings().get((binding.scope, binding.selector), {}).get(binding.parameter)
    if binding.is_macro or current is not binding.value:  # The program has replaced the value.
      continue
    if not is_used(binding, called):
      entered = not binding.scope or any(_inside(scope, binding.scope) for scope in scopes)
      if id(binding) not in dropped or not entered:
        found.append(_explained(binding, called, entered))
  return found


def is_used(binding: Binding, called: Values) -> bool:
  """Whether a call used the binding, or one of a narrower scope in its place."""
  return any(selector == binding.selector and _inside(scope, binding.scope)
             and binding.parameter in values for (scope, selector), values in called.items())


def _inside(scope: str, outer: str) -> bool:
  return not outer or f"{scope}/".startswith(f"{outer}/")


def _explained(binding: Binding, called: Values, entered: bool) -> Unused:
  own = [scope for scope, selector in called if selector == binding.selector]
  short = short_name(binding.selector)
  if any(_inside(scope, binding.scope) for scope in own):
    return Unused(binding, f"the program gives {short} a {binding.parameter} of its own", True)
  if own:
    known = sorted(filter(None, own))
    where = f"in the scopes {', '.join(known)}" if known else "outside of any scope"
    problem = "there" if entered else f"in the scope '{binding.scope}'"
    misspelled = not entered and bool(
        difflib.get_close_matches(binding.scope, known, cutoff=_MISSPELLED))
    return Unused(binding, f"{short} is not called {problem}.{nearest(binding.scope, known)} It "
                              f"is called {where}", True, misspelled)
  hint = nearest(binding.scope, {s for s, _ in called if s}) if not entered else ""
  remedy = f".{hint}" if hint else "; remove the line, or refer to it"
  return Unused(binding, f"{short} is not called by the end of the first step{remedy}", False)


def dropped_by(bindings: Sequence[Binding]) -> list[Binding]:
  """The bindings of what an overridden value refers to, also indirectly; some may be in use.

  They stand before the statement that overrides the value: who writes a later one knows of that.
  """
  refers: dict[str, set[str]] = {}
  for binding in bindings:
    refers.setdefault(binding.selector, set()).update(
        reference.configurable.selector for reference in binding.references())
  next_of: dict[tuple, int] = {}  # The place of the following statement on a parameter, by its key.
  dropped_until: dict[str, int] = {}  # By configurable.
  for place, binding in reversed(list(enumerate(bindings))):
    end = next_of.get(binding.key, 0)
    next_of[binding.key] = place
    waiting = [reference.configurable.selector for reference in binding.references()]
    while waiting:
      selector = waiting.pop()
      if dropped_until.get(selector, 0) < end:
        dropped_until[selector] = end
        waiting.extend(refers.get(selector, ()))
  return [binding for place, binding in enumerate(bindings)
          if place < dropped_until.get(binding.selector, 0)]


@contextlib.contextmanager
def missing_values_reported() -> Iterator[None]:
  """Turns the error of a call without a value that gin can set into a UsageError."""
  try:
    yield
  except Exception as error:
    if missing := missing_value(error):
      raise UsageError(missing) from error
    raise


def missing_value(error: Exception) -> str | None:
  """One line on what to write, if the error is a call without a value that gin can set; or None."""
  message = str(error)
  found = (re.search(r"Required bindings for `(?P<name>.+)` not provided in config: "
                     r"(?P<missing>\[.*?\])", message)
           or re.search(r"No values supplied by Gin or caller for arguments: (?P<missing>\[.*?\])"
                        r"(?s:.*?)In call to configurable '(?P<name>[^']+)'", message))
  matches = registry().matching_selectors(found["name"]) if found else []
  if not found or len(matches) != 1:
    return None
  known = parameters(registry()[matches[0]])
  missing = [name for name in ast.literal_eval(found["missing"]) if name in known]
  if not missing:
    return None
  names = ", ".join(f"{found['name']}.{name}" for name in missing)
  elsewhere = [f"{binding.where} sets {binding.name} only" for binding in effective(last_read())
               if binding.selector == matches[0] and binding.parameter == missing[0]]
  files = [binding.file for binding in last_read() if binding.file and not binding.is_record]
  binding = f"{found['name']}.{missing[0]} = ..."
  configs = ", ".join(_configs_of(command.experiment()))
  remedy = (f"write {binding} in {files[-1]}, or with --gin_param" if files
            else f"write --gin_file=F, where F is one of {configs}" if configs
            else f"write {binding} with --gin_param")
  return (f"the configuration must set: {names}{f' ({elsewhere[-1]})' if elsewhere else ''}; "
          f"{remedy}")


def _configs_of(experiment: str) -> list[str]:
  """The files right in `configs/` that show a command of an experiment."""
  shown = re.compile(rf"\b{re.escape(experiment)}(\.py)? --gin_file")
  return [name for name in gin_files.named() if name.count("/") == 1
          and shown.search(pathlib.Path(gin_files.found(name)).read_text(errors="ignore"))]
