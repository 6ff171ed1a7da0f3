"""The prose of the project is plain American English, in the words of the field."""

import io
import pathlib
import re
import subprocess
import tokenize

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FILES = [ROOT / name for name in subprocess.run(
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


def prose(path: pathlib.Path) -> list[tuple[int, str]]:
  """The lines of a file that a person reads: of Python, its strings and comments."""
  text = path.read_text()
  if path.suffix not in (".py", ".pyi"):
    return list(enumerate(text.splitlines(), 1))
  lines = []
  for token in tokenize.generate_tokens(io.StringIO(text).readline):
    if token.type in (tokenize.STRING, tokenize.COMMENT):
      lines += list(enumerate(token.string.splitlines(), token.start[0]))
  return lines


def test_the_files_are_found():
  assert {"README.md", "train.py", "sngan.py", "sngan_digits.gin"} <= {path.name for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_is_plain(path):
  stiff = [f"{path.relative_to(ROOT)}:{number}: {line.strip()} (better: {better})"
           for number, line in prose(path) for pattern, better in STIFF.items()
           if re.search(pattern, line, re.IGNORECASE)]
  stiff += [f"{path.relative_to(ROOT)}:{number}: {line.strip()} (begins with 'Of')"
            for number, line in prose(path) if OF.search(line)]
  assert not stiff, "\n".join(stiff)
