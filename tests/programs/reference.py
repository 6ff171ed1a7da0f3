"""Prints every name of the reference with its arguments and what it does, a list for each page.

    python -m tests.programs.reference > docs/reference/names.md

The pages of `docs/reference/` list names, which the site shows with their docstrings. This page can
be read in the repository, too.
"""

import importlib
import inspect
import re
from typing import Any

from tests.pages import ROOT

COMMAND = "python -m tests.programs.reference > docs/reference/names.md"
INTRODUCTION = f"""\
# All names at a glance

Written by `{COMMAND}`. On the site, each name
has its whole docstring on the page that the heading links to; in Python, `help(name)` has it.
"""
FOLDER = ROOT / "docs/reference"


def pages() -> list[str]:
  """The names of the pages that list names, in the order of the navigation."""
  listed = re.findall(r" reference/(\w+\.md)", (ROOT / "mkdocs.yml").read_text())
  return [page for page in listed if re.search(r"^::: ", (FOLDER / page).read_text(), re.MULTILINE)]


def found(name: str) -> Any:
  """What a dotted name refers to."""
  words = name.split(".")
  for length in range(len(words), 0, -1):
    try:
      thing: Any = importlib.import_module(".".join(words[:length]))
    except ModuleNotFoundError:
      continue
    for word in words[length:]:
      thing = getattr(thing, word)
    return thing
  raise ValueError(f"{name}: no module")


def call(name: str, thing: Any) -> str:
  """How a name is called, without types: `name(a, b=1)`; of what is not callable, the name."""
  try:
    signature = inspect.signature(thing)
  except (TypeError, ValueError):
    return name
  empty = inspect.Parameter.empty
  shown = [each.replace(annotation=empty, default=default(each.default))
           for each in signature.parameters.values() if each.name != "self"]
  return f"{name}{signature.replace(parameters=shown, return_annotation=empty)}"


class Shown(str):
  """A default as it is written."""

  __slots__ = ()

  def __repr__(self) -> str:
    return str(self)


def default(value: Any) -> Any:
  """A default that is the same in each process: functions and objects are shown as `...`."""
  plain = (int, float, str, bool, type(None), tuple, list, dict)
  return value if value is inspect.Parameter.empty or isinstance(value, plain) else Shown("...")


def summary(thing: Any) -> str:
  """The first paragraph of a docstring, on one line."""
  return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())


def names(page: str) -> str:
  """The names of a page."""
  text = (FOLDER / page).read_text()
  title = text.partition("\n")[0].removeprefix("# ")
  rows = []
  for name in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE):
    is_facade = re.fullmatch(r"replicator\.(\w+\.)?\w+", name)
    short = name.removeprefix("replicator.") if is_facade else name.rpartition(".")[2]
    rows.append(f"- `{call(short, found(name))}`: {summary(found(name))}")
  return f"## [{title}]({page})\n\n" + "\n".join(rows) + "\n"


def document() -> str:
  """The whole page."""
  return "\n".join([INTRODUCTION, *map(names, pages())])


if __name__ == "__main__":
  print(document(), end="")
