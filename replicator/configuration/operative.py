"""The operative configuration, `config.gin`: every value of a run, enough to repeat it."""

import contextlib
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from replicator import atomic
from replicator.configuration import annotations, checks, statements
from replicator.configuration.configurables import defaults
from replicator.configuration.differences import bindings_in, differences, references_in
from replicator.configuration.gin_internals import (
  Values,
  current_bindings,
  format_config,
  operative_config,
  registry,
)
from replicator.configuration.literals import literal
from replicator.configuration.statements import CONSTANT, MACRO, RECORD_HEADER
from replicator.errors import UsageError

import gin


def text(earlier: str = "") -> str:
  """Returns the text of a gin file with all bindings and the values of all calls so far.

  Omits bindings of configurables that only an overridden value refers to, unless they were called.
  `earlier` is the text of the configuration of a run that has progressed further: this run will
  make the same calls, perhaps only in its next evaluation.
  """
  called = {selector for _, selector in operative_config()}
  unused = {binding.selector for binding in checks.dropped_by(statements.last_read())} - called
  values: Values = {key: dict(bound) for key, bound in current_bindings().items()
                    if key[1] not in unused}
  for key, used in operative_config().items():
    values.setdefault(key, {}).update(used)
  for key, names in _called_by(earlier, values).items():
    would_use = values_of_call(*key)
    values.setdefault(key, {}).update({n: would_use[n] for n in names if n in would_use})
  return f"{RECORD_HEADER}\n\n{format_config(_without_unused_macros(values))}"


def after_first_step(path: pathlib.Path, resumed: bool, evaluated: bool) -> list[str]:
  """Checks that every binding had an effect, and writes `config.gin` to `path`, atomically.

  A `resumed` run continues from a checkpoint, so this process has not evaluated yet. `evaluated`
  means that a run has evaluated before its first step, or never does. Returns lines for the user:
  what a resumed run has changed, and which bindings are unused so far, because they come from an
  earlier run's `config.gin` or may be used in a later evaluation.

  Raises:
    UsageError: a binding is unused.
  """
  earlier = ""
  if resumed:
    with contextlib.suppress(OSError, UnicodeDecodeError):
      earlier = path.read_text(encoding="utf-8")
  called = calls_in(earlier)
  for key, used in [*_of_earlier_runs().items(), *operative_config().items()]:
    called.setdefault(key, {}).update(used)
  found = checks.unused(statements.last_read(), called)
  _refuse(each for each in found if each.certain or (evaluated and not resumed))
  now = text(earlier)
  atomic.write_whole(path, now)
  lines = []
  with contextlib.suppress(ValueError):  # The earlier configuration may be corrupt.
    changed = differences(earlier, now) if earlier else {}
    lines += [f"changed: {name} {_change(*values)}" for name, values in changed.items()]
  lines += [f"warning: {each}" for each in found if not each.binding.is_record]
  if recorded := [each.binding for each in found if each.binding.is_record]:
    lines.append(f"note: {len(recorded)} values of {recorded[0].file} were not used, such as "
                 f"{recorded[0].name}")
  return lines


def _change(before: str | None, now: str | None) -> str:
  if before is None:
    return f"= {now}, new"
  return f"= {now}, was {before}" if now else f"is no longer set, was {before}"


@contextlib.contextmanager
def changed_in_body() -> Iterator[list[str]]:
  """Yields a list, filled at the end, of the configurables called with non-default values."""
  calls, found = operative_config(), list[str]()
  before = dict(calls)
  calls.clear()
  try:
    yield found
  finally:
    for (_, selector), used in calls.items():
      if selector not in (MACRO, CONSTANT):
        default = defaults(registry()[selector])
        if any(name not in default or value != default[name] for name, value in used.items()):
          found.append(selector)
    for key, used in before.items():
      calls[key] = {**used, **calls.get(key, {})}


@contextlib.contextmanager
def calls_of_one_run(*also: str) -> Iterator[None]:
  """Forgets the calls in the body afterwards, so that a later run does not count them as its own.

  Also forgets calls of the configurables in `also` from before the body. What a run has called
  counts as used in later runs under the same configuration. If a command ends a run with an
  exception that is not handled here, it can still read the calls.
  """
  before = {key: dict(used) for key, used in operative_config().items() if key[1] not in also}

  def forget() -> None:
    earlier = _of_earlier_runs()
    for key, used in operative_config().items():
      earlier.setdefault(key, {}).update(used)
    operative_config().clear()
    operative_config().update(before)

  try:
    yield
  except (Exception, KeyboardInterrupt):
    forget()
    raise
  forget()


def _of_earlier_runs() -> Values:
  """Returns the calls of earlier runs of this process under the current configuration."""
  global _earlier_runs
  if _earlier_runs[0] is not statements.last_read():
    _earlier_runs = statements.last_read(), {}
  return _earlier_runs[1]


_earlier_runs: tuple[Sequence[statements.Binding], Values] = (), {}


def check_scopes() -> None:
  """Raises a UsageError for unused bindings whose scope looks like a misspelled scope of a call.

  A later evaluation may enter other scopes, so only `after_first_step` can reject those.
  """
  found = checks.unused(statements.last_read(), operative_config())
  _refuse(each for each in found if each.misspelled)


def check_all_used() -> None:
  """Raises a UsageError for unused bindings, at a point where nothing else will use them."""
  _refuse(checks.unused(statements.last_read(), operative_config()))


def _refuse(mistakes: Iterable[checks.Unused]) -> None:
  by_hand = [each for each in mistakes if not each.binding.is_record]
  if by_hand:
    others = ", ".join(f"{each.binding.where}: {each.binding.name}" for each in by_hand[1:])
    raise UsageError(f"{by_hand[0]}{f' (and {others})' if others else ''}")


def values_of_call(scope: str, selector: str) -> dict[str, Any]:
  """Returns the values a call in a scope would use: bindings, and defaults that gin can write."""
  values = {name: value for name, value in defaults(registry()[selector]).items()
            if _is_literal(value)}
  for outer in outer_scopes(scope):
    values.update(current_bindings().get((outer, selector), {}))
  return values


def value_of(selector: str, parameter: str) -> Any:
  """Returns the value that a call outside of scopes would use, with macros replaced."""
  return annotations.resolved(
      values_of_call("", *registry().matching_selectors(selector))[parameter])


def outer_scopes(scope: str) -> list[str]:
  """Returns the scopes whose bindings apply in a scope, widest first: `a/b -> '', 'a', 'a/b'`."""
  parts = scope.split("/") if scope else []
  return ["/".join(parts[:length]) for length in range(len(parts) + 1)]


def _is_literal(value: Any) -> bool:
  try:
    return gin.config.parse_value(literal(value)) == value
  except SyntaxError:
    return False


def calls_in(written: str) -> Values:
  """Reads the calls in a configuration's text with names that exist now; none if it is not gin."""
  calls: Values = {}
  try:
    bindings = bindings_in(written)
  except ValueError:
    return {}
  for scope, selector, parameter, value in bindings:
    names = registry().matching_selectors(selector)
    if parameter and len(names) == 1:
      calls.setdefault((scope, names[0]), {})[parameter] = value
  return calls


def _called_by(earlier: str, values: Values) -> Values:
  """Returns the calls in `earlier`, except of configurables that only `earlier` refers to."""
  calls = calls_in(earlier)
  before = {reference.selector.rpartition(".")[2] for reference in references_in(calls)}
  now = {reference.configurable.name for reference in gin.config.iterate_references(values)}
  called = {selector for _, selector in operative_config()}
  return {key: used for key, used in calls.items() if key not in operative_config()
          and (key[1] in called or registry()[key[1]].name not in before - now)}


def _without_unused_macros(values: Values) -> Values:
  kept = {key: used for key, used in values.items() if key[1] not in (MACRO, CONSTANT)}
  waiting = list(gin.config.iterate_references(kept))
  while waiting:
    reference = waiting.pop()
    if reference.configurable.selector == MACRO and reference.config_key not in kept:
      kept[reference.config_key] = current_bindings()[reference.config_key]
      waiting += gin.config.iterate_references([kept[reference.config_key]["value"]])
  return kept
