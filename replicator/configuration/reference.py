"""Lists the gin parameters of a module for `--help` of an experiment."""

import inspect
import re
import textwrap

from replicator.configuration.annotations import in_words
from replicator.configuration.configurables import constructor, defaults, hints
from replicator.configuration.gin_internals import registry
from replicator.configuration.literals import literal

import gin


def parameters_of(module: str) -> str:
  """Returns a paragraph for each configurable of a module; omits parameters without a default."""
  found = [each for _, each in registry().items()
           if each.wrapped.__module__ == module and defaults(each)]
  return "\n\n".join(map(_paragraph, sorted(found, key=lambda each: each.name.lower())))


def _paragraph(configurable: gin.config.Configurable) -> str:
  docstring = inspect.getdoc(configurable.wrapped) or ""
  annotated, meanings = hints(constructor(configurable)), _meanings(docstring)
  lines = [f"{configurable.name}: {docstring.partition(chr(10))[0]}".rstrip(": ")]
  for name, default in defaults(configurable).items():
    kind = f"  ({in_words(annotated[name])})" if name in annotated else ""
    lines.append(f"  {name} = {_default(default)}{kind}")
    lines += textwrap.wrap(meanings.get(name, ""), 90, initial_indent=" " * 6,
                           subsequent_indent=" " * 6)
  return "\n".join(lines)


def _default(value: object) -> str:
  if value is gin.REQUIRED:
    return "..."
  return f"@{value.__name__}" if callable(value) and hasattr(value, "__name__") else literal(value)


def _meanings(docstring: str) -> dict[str, str]:
  """Returns the descriptions of arguments in the `Args:` section of a docstring, by name."""
  section = re.search(r"^Args:\n((?: +.*\n?|\n)+)", docstring, re.MULTILINE)
  found = re.findall(r"^  (\w+): (.*(?:\n    +.*)*)", section[1] if section else "", re.MULTILINE)
  return {name: " ".join(text.split()) for name, text in found}
