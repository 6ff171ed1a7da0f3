"""README, the pages of `docs` and the heads of gin files: their blocks of code and commands."""

import dataclasses
import difflib
import pathlib
import re
import shlex

ROOT = pathlib.Path(__file__).parents[1]
README = ROOT / "README.md"
EXTEND = ROOT / "docs/howto/extend.md"  # The files of one project: see `tests/test_extend.py`.
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"python", "bash", "gin", "diff", "text"}  # Text is output, which nobody types.


@dataclasses.dataclass(frozen=True)
class Block:
  """A fenced block of code.

  Attributes:
    where: its page and line.
    language: the word behind the fence.
    title: the name of the file that it makes, or None.
    is_fragment: whether `<!-- fragment -->` stands above it: it does not run alone.
    text: its lines.
  """

  where: str
  language: str
  title: str | None
  is_fragment: bool
  text: str


def blocks_of(page: pathlib.Path) -> list[Block]:
  """All blocks of a page, in order."""
  blocks, fence = [], re.compile(r'^```(\w*)(?: title="([\w./]+)")?$')
  lines = page.read_text().splitlines()
  opened = None
  for number, line in enumerate(lines, 1):
    if opened is None and line.lstrip().startswith("```"):
      opened = number
    elif line.strip() == "```":
      head = fence.match(lines[opened - 1])
      where = f"{page.relative_to(ROOT)}:{opened}"
      assert head, f"{where}: write ```LANGUAGE or ```LANGUAGE title=\"FILE\""
      text = "\n".join(lines[opened:number - 1]) + "\n"
      blocks.append(Block(where, head[1], head[2], lines[opened - 2] == "<!-- fragment -->", text))
      opened = None
  assert opened is None, f"{page.name}:{opened}: the fence is not closed"
  return blocks


BLOCKS = [block for page in PAGES if page != EXTEND for block in blocks_of(page)]
PROGRAMS = [block for block in BLOCKS if block.language == "python" and not block.is_fragment]
STEP = next(block for block in PROGRAMS if block.where.startswith("README"))
FILES = {block.title or "my_step.py": block for block in PROGRAMS}


def commands_of(block: Block) -> list[list[str]]:
  """The words of each command of a shell block."""
  commands: list[list[str]] = [[]]
  for line in block.text.replace("\\\n", " ").splitlines():
    for word in shlex.split(line, comments=True):
      if word == "&&":
        commands.append([])
      else:
        commands[-1].append(word)
    commands.append([])
  return [words for words in commands if words]


def commands_of_head(file: pathlib.Path) -> list[list[str]]:
  """The words of each command in the comments of a gin file."""
  found = re.findall(r"^#   ((?:python -m|replicator) (?:.*\\\n# )*.*)$", file.read_text(),
                     re.MULTILINE)
  return [shlex.split(command.replace("\\\n# ", "")) for command in found]


COMMANDS = {f"{block.where}: {shlex.join(words)}": words
            for block in BLOCKS if block.language == "bash" and not block.is_fragment
            for words in commands_of(block)}
COMMANDS |= {f"{file.name}: {shlex.join(words)}": words
             for file in sorted((ROOT / "configs").rglob("*.gin"))
             for words in commands_of_head(file)}


def anchors_of(page: pathlib.Path) -> set[str]:
  """The anchors of a page's headings, as the site and GitHub make them."""
  text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
  headings = re.findall(r"^(?:# )?#+ (.+)$", text, re.MULTILINE)  # A notebook's begin with "# ".
  return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def values_of(words: list[str], flag: str) -> list[str]:
  """The values of a flag that may be given several times."""
  return [word.partition("=")[2] for word in words if word.startswith(f"{flag}=")]


def changes(before: str, after: str) -> list[str]:
  """The lines of a diff between two programs of `tests/programs`."""
  old, new = ((ROOT / f"tests/programs/{name}.py").read_text().splitlines()
              for name in (before, after))
  return list(difflib.unified_diff(old, new, lineterm="", n=0))[2:]


def diff_of(page: str) -> list[str]:
  """The lines of the diff that a page of "How-to" shows."""
  (block,) = (block for block in blocks_of(ROOT / f"docs/howto/{page}.md")
              if block.language == "diff")
  return block.text.splitlines()
