"""The prose of the project is plain American English, in the words of the field."""

import ast
import functools
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator

from tests.python_files import ROOT, check_none

FILES = [name for name in subprocess.run(
    ["git", "ls-files", "*.py", "*.pyi", "*.md", "*.gin", "*.html", "setup.cfg", ".ci/run"],
    cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    if name != "tests/test_english.py" and (ROOT / name).exists()]

# What does not belong, and what the field says.
STIFF = {
    r"\b(is|are|was|were|be|been|being) told\b": "is reported, logged, raised",
    r"\btells (of|that|which|what|how|it|them|who|where|whether|why)\b": "reports, says",
    r"\blest\b": "so that ... does not",
    r"\bshall\b": "must, will",
    r"\bfor ?ever\b": "never ends",
    r"\bas ever\b": "as always",
    r"\banew\b": "again",
    r"\bthere(of|upon|in)\b|\bwhere(of|upon)\b": "of it",
    r"\bto be had\b": "available",
    r"\b(none|some|one|two|all|each|most|both|several|many|any|which) of them\b": "the noun",
    r"\bcolour|\bbehaviour|\blicence\b|\bgrey\b|\bneighbour|\bcentre\b|\bartefact": "color, ...",
    r"\b(normal|priorit|optim|initial|general|synchron|summar|recogn|serial)is(e|es|ed|ing|ation)\b":
        "-ize",
}
OF = re.compile(r'(^|[.:!?]\s+|"""|#\s*)Of (?!the form)[a-z]')


@functools.cache
def prose(file: str) -> list[tuple[str, str]]:
  """(`FILE:LINE`, text) of the lines that a person reads: of Python, its strings and comments."""
  text = (ROOT / file).read_text()
  if not file.endswith((".py", ".pyi")):
    return [(f"{file}:{number}", line) for number, line in enumerate(text.splitlines(), 1)]
  return [(f"{file}:{number}", line)
          for token in tokenize.generate_tokens(io.StringIO(text).readline)
          if token.type in (tokenize.STRING, tokenize.COMMENT)
          for number, line in enumerate(token.string.splitlines(), token.start[0])]


def test_the_files_are_found():
  assert {"README.md", "replicator/training/train.py", "experiments/sngan.py",
          "configs/sngan_digits.gin"} <= set(FILES)


def test_words_are_plain():
  anywhere = re.compile("|".join(STIFF), re.IGNORECASE)
  check_none(f"{where}: {line.strip()} (better: {better})"
             for file in FILES if anywhere.search((ROOT / file).read_text())
             for where, line in prose(file)
             for pattern, better in STIFF.items() if re.search(pattern, line, re.IGNORECASE))


def test_no_sentence_begins_with_of():
  check_none(f"{where}: {line.strip()}"
             for file in FILES if "Of " in (ROOT / file).read_text()
             for where, line in prose(file) if OF.search(line))


def test_docstrings_begin_with_a_noun_or_a_verb():
  begins_badly = re.compile(r"(What|That)\b")
  check_none(f"{file}:{line}: {text.splitlines()[0]}" for file in FILES if file.endswith(".py")
             and begins_badly.search((ROOT / file).read_text())
             for line, text in docstrings(ast.parse((ROOT / file).read_text()))
             if begins_badly.match(text))


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
  """(line, text) of the docstrings of a module, its classes and its functions."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
      text = ast.get_docstring(node)
      if text is not None:
        yield node.body[0].lineno, text
