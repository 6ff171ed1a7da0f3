"""Measurements live in `docs/results.md`: a number that another page repeats stands there, too."""

import re

import pytest

from tests.pages import README, ROOT

CHECKED = [README, *sorted((ROOT / "docs").glob("*/*.md"))]
RESULTS = (ROOT / "docs/results.md").read_text()

# A part of a version or of a word, such as 8x8, is no number.
NUMBER = r"(?<![\w.,/])(\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)(?![\d.]*\d|\w)"
FRACTION = r"(?=\d[\d,]*\.\d|\d+e-)"
UNIT = (r"(?:\s?%|\s(?:ms|seconds?|minutes?|hours?|[KMG]i?B|times|"
        r"(?:examples|images|steps) (?:a|per) second)\b)")
MEASURED = f"{FRACTION}{NUMBER}|{NUMBER}{UNIT}"

NOT_MEASURED = {
    "README.md": "1e-9 3.10 3.15 2.21",  # A tolerance, and versions.
    "agents.md": "133 1.10",  # The bytes of an array, and their share.
    "clusters.md": "22.05 3.5 2.60 3.11 1e-9",  # Versions, and a tolerance.
    "capabilities.md": "1e-9 1e-2",
    "doctor.md": "1e-3 2e-14",
    "export.md": "1e-6 1e-5",
    "images.md": "31",  # The bytes of an array.
    "resume.md": "1e-9",
    "security.md": "2.52 2.61",  # Versions.
    "scaling.md": "1.25e9 12.5e9 8.4 2,375 91.5 99.3",  # Published, and what the model makes of it.
}
"""By page, what has the look of a measurement, and is none of this project."""


def values(pattern: str, text: str) -> set[float]:
  """The numbers of a text, without those of code and of the targets of links."""
  plain = re.sub(r"`[^`\n]*`|\]\([^)]*\)", "", text)
  return {float("".join(groups).replace(",", "")) for groups in re.findall(f"{pattern}()", plain)}


def section(anchor: str) -> str:
  """The section of the results under a heading."""
  for text in RESULTS.split("\n## "):
    if re.sub(r"[^\w -]", "", text.partition("\n")[0].lower()).replace(" ", "-") == anchor:
      return text
  raise AssertionError(f"docs/results.md has no section #{anchor}")


def unknown(text: str, pattern: str = MEASURED) -> set[float]:
  """The numbers of a text that the sections to which it links lack; without links, the results."""
  anchors = re.findall(r"results\.md#([\w-]+)\)", text)
  known = "\n".join(map(section, anchors)) or RESULTS
  return values(pattern, text) - values(NUMBER, known)


@pytest.mark.parametrize("page", CHECKED, ids=lambda page: page.stem)
def test_a_measurement_on_another_page_stands_in_the_results(page):
  text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
  allowed = values(NUMBER, NOT_MEASURED.get(page.name, ""))
  for part in re.split(r"\n\n|\n(?=\|)", text):  # Paragraphs, and rows of tables.
    assert not unknown(part) - allowed, part


def test_the_table_of_the_readme_quotes_the_sections_that_it_links_to():
  text = README.read_text().partition("\n## Results\n")[2].partition("\n## ")[0]
  rows = [line for line in text.splitlines() if line.startswith("| [")]
  assert 0 < len(rows) <= 6 and len(re.findall(r"^\|", text, re.MULTILINE)) == len(rows) + 2
  for row in rows:
    assert re.search(r"\(docs/results\.md#[\w-]+\)", row), row
    assert not unknown(row, NUMBER), row


def test_a_wrong_number_is_found():
  assert unknown("At most 5.6e-15, in 3.21 ms, and 1,499 MiB.") == {5.6e-15, 3.21, 1499}
  link = "](docs/results.md#speed-of-a-gan-step)"
  assert not unknown(f"[111.3{link} examples a second")
  assert unknown(f"[83.6{link} examples a second") == {83.6}  # It is that of another section.
