"""Writes measured tables and numbers into the documentation.

  python -m benchmarks.pages

Hidden comments in a page mark the places. For a table with its command and conditions, here the
first one of `benchmarks/results/start.json`:

  <!-- table: start 0 -->
  <!-- end -->

For a number in a sentence or a cell, by the row and the column of a table:

  <!-- number: start 0 / one device / first step -->10.3<!-- end -->
"""

import pathlib
import re
import sys
from typing import Any

from benchmarks import record

ROOT = pathlib.Path(__file__).parents[1]
_TABLE = re.compile(r"(<!-- table: (\w+) (\d+) -->\n).*?(<!-- end -->)", re.DOTALL)
_NUMBER = re.compile(r"(<!-- number: (\w+) (\d+) / (.+?) / (.+?) -->).*?(<!-- end -->)")


def pages() -> list[pathlib.Path]:
  """Returns the pages of the documentation."""
  return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def filled(text: str) -> str:
  """Fills a page with the numbers from the records.

  Raises:
    KeyError: a table lacks the row or column.
    FileNotFoundError: a record does not exist.
  """
  text = _TABLE.sub(lambda found: found[1] + table(found[2], int(found[3])) + found[4], text)
  return _NUMBER.sub(lambda found: (
      f"{found[1]}{number(found[2], int(found[3]), found[4], found[5])}{found[6]}"), text)


def table(name: str, index: int) -> str:
  """Formats a record's table as Markdown, after its command and before its conditions."""
  facts = record.read(name)
  found = facts["tables"][index]
  lines = [[found["label"], *found["columns"]], ["---", *("---:" for _ in found["columns"])],
           *([row, *_formatted(found, cells)] for row, cells in found["rows"])]
  title = found["title"]
  return "\n".join([
      "", "```bash", facts["command"], "```", "", f"{title[0].upper()}{title[1:]}:", "",
      *(f"| {' | '.join(line)} |" for line in lines), "",
      f"*{record.said_of(facts)}; {facts['date']}, at {facts['commit']}.*", "", ""])


def number(name: str, index: int, row: str, column: str) -> str:
  """Returns a number from a record, formatted as in its table."""
  found = record.read(name)["tables"][index]
  cells = dict(found["rows"])[row]
  return dict(zip(found["columns"], _formatted(found, cells), strict=True))[column]


def _formatted(found: dict[str, Any], cells: list[record.Cell]) -> list[str]:
  return [record.formatted(*each) for each in zip(cells, found["columns"].values(), strict=True)]


def main() -> None:
  for page in pages():
    text = page.read_text(encoding="utf-8")
    if (new := filled(text)) != text:
      page.write_text(new, encoding="utf-8")
      print(f"written: {page.relative_to(ROOT)}")


if __name__ == "__main__":
  sys.exit(main())
