"""Finds errors that gin does not report: in macros and types, and unused values."""

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

_MISSPELLED = 0.8  # The similarity above which a scope counts as a misspelling.


def check(bindings: Sequence[Binding]) -> None:
  """Checks all statements of a configuration, including overridden ones.

  Raises:
    UsageError: a macro has no value or is never used, a value is not of the annotated type, or
      `%gin.REQUIRED` was not replaced by a value.
  """
  for binding in bindings:
    _check_macros_in(binding, bindings)
  used = {"/".join(reference.scopes) for binding in bindings for reference in binding.references()
          if reference.configurable.selector == MACRO}
  for binding in bindings:
    # The record of an earlier run may have it for code that no longer exists.
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
                       f"{binding.name} = ... in a later file, or with --gin_param")


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
  """Returns a hint about what `steps = 100` may mean: a parameter or another macro."""
  scope, _, parameter = name.rpartition("/")
  referred = {reference.configurable.selector for binding in bindings
              for reference in binding.references()}
  known = sorted((short_name(selector), each) for selector, c in registry().items()
                 if selector in referred or not selector.startswith(("keras.", "tf.", "gin."))
                 for each in parameters(c))
  owners = [owner for owner, each in known if each == parameter]
  # The owners named in the configuration, or else all.
  named = set(map(short_name, referred | {binding.selector for binding in bindings}))
  owners = [owner for owner in owners if owner in named] or owners
  if owners:
    return " Did you mean " + " or ".join(
        f"{scope}/" * bool(scope) + f"{owner}.{parameter}" for owner in owners[:3]) + "?"
  return (nearest(name, used) or nearest(parameter, (".".join(each) for each in known))
          or f" Write %{name} where you need its value, or remove it")


def effective(bindings: Sequence[Binding]) -> list[Binding]:
  """Returns the bindings that are not overridden, in order."""
  last = {binding.key: binding for binding in bindings}
  return [binding for binding in bindings if last[binding.key] is binding]


_REMEDIES = {"microbatch": "compute the gradients of the step in minimize or in "
                           "replicator.microbatch, or remove the line"}
"""The remedy if a configurable that a step should call itself is not called, by name."""


@dataclasses.dataclass(frozen=True)
class Unused:
  """A binding that has had no effect so far."""

  binding: Binding
  reason: str  # Why it had no effect, in one line.
  # Whether it cannot have one later either: its configurable was called, but in other scopes, or
  # the program passed the value.
  certain: bool
  misspelled: bool = False  # Whether its scope looks like a misspelled scope of a call.

  def __str__(self) -> str:
    return f"{self.binding.where}: {self.binding.name} is never used: {self.reason}"


def unused(bindings: Sequence[Binding], called: Values) -> list[Unused]:
  """Returns the bindings that no call in `called` used, in order.

  It is not a mistake if only an overridden value refers to a binding's configurable: a file that
  replaces `SNGAN.optimizer = @adam` of an included file cannot remove that file's `adam.beta_1`.
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
  """Returns whether a call used the binding, or one from a narrower scope instead."""
  return any(selector == binding.selector and _inside(scope, binding.scope)
             and binding.parameter in values for (scope, selector), values in called.items())


def _inside(scope: str, outer: str) -> bool:
  return not outer or f"{scope}/".startswith(f"{outer}/")


def _explained(binding: Binding, called: Values, entered: bool) -> Unused:
  own = [scope for scope, selector in called if selector == binding.selector]
  short = short_name(binding.selector)
  if any(_inside(scope, binding.scope) for scope in own):
    return Unused(binding, f"the program gives {short} its own {binding.parameter}", True)
  if own:
    known = sorted(filter(None, own))
    where = f"in the scopes {', '.join(known)}" if known else "outside of any scope"
    problem = "there" if entered else f"in the scope '{binding.scope}'"
    misspelled = not entered and bool(
        difflib.get_close_matches(binding.scope, known, cutoff=_MISSPELLED))
    return Unused(binding, f"{short} is not called {problem}.{nearest(binding.scope, known)} It "
                  f"is called {where}", True, misspelled)
  hint = nearest(binding.scope, {s for s, _ in called if s}) if not entered else ""
  remedy = f".{hint}" if hint else f"; {_REMEDIES.get(short, 'remove the line, or refer to it')}"
  return Unused(binding, f"{short} is not called by the end of the first step{remedy}", False)


def dropped_by(bindings: Sequence[Binding]) -> list[Binding]:
  """Returns bindings of configurables that an overridden value refers to, directly or indirectly.

  Some may be in use. Only bindings before the overriding statement count, because later ones were
  written knowing of it.
  """
  refers: dict[str, set[str]] = {}
  for binding in bindings:
    refers.setdefault(binding.selector, set()).update(
        reference.configurable.selector for reference in binding.references())
  next_of: dict[tuple, int] = {}  # The place of the next statement about a parameter, by its key.
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
  """Turns the error for a missing argument that gin can set into a UsageError."""
  try:
    yield
  except Exception as error:
    if missing := missing_value(error):
      raise UsageError(missing) from error
    raise


def missing_value(error: Exception) -> str | None:
  """Returns the remedy if the error is a missing argument that gin can set; otherwise None."""
  message = str(error)
  found = (re.search(r"Required bindings for `(?P<name>.+)` not provided in config: "
                     r"(?P<missing>\[.*?\])", message)
           or re.search(r"No values supplied by Gin or caller for arguments: (?P<missing>\[.*?\])"
                        r"(?s:.*?)In call to configurable '(?P<name>[^']+)'", message))
  matches = registry().matching_selectors(found["name"]) if found else []
  if not found or len(matches) != 1:
    return None
  known = parameters(registry()[matches[0]])
  all_missing = ast.literal_eval(found["missing"])
  missing = [name for name in all_missing if name in known]
  if not missing:
    return _called_too_early(matches[0], all_missing)
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


def _called_too_early(selector: str, missing: Sequence[str]) -> str | None:
  """Describes a binding `@NAME()` that only the program can call; None if there is none."""
  for binding in effective(last_read()):
    for reference in binding.references():
      if reference.configurable.selector == selector and reference.evaluate:
        name = "/".join([*reference.scopes, short_name(selector)])
        return (f"{binding.where}: {binding.name} = @{name}(): the program calls it, and passes "
                f"{', '.join(missing)}; write @{name}, without parentheses")
  return None


def _configs_of(experiment: str) -> list[str]:
  """Returns the files directly in `configs/` that show a command of an experiment."""
  shown = re.compile(rf"\b{re.escape(experiment)}(\.py)? --gin_file")
  return [name for name in gin_files.named() if name.count("/") == 1
          and shown.search(pathlib.Path(gin_files.found(name)).read_text(errors="ignore"))]
