"""The result of one comparison of the doctor, as a row of its table."""

import dataclasses
import textwrap

AGREES, DIFFERS, FAILED, SKIPPED = "agrees", "DIFFERS", "FAILED", "--"


@dataclasses.dataclass(frozen=True)
class CheckResult:
  """A row of the table."""

  check: str  # The variant, or the part of a run, that was compared.
  verdict: str  # One of the four above, or a different word for a row without a comparison.
  detail: str  # How much was compared, how much it differs, or why it was not compared.
  notes: tuple[str, ...] = ()  # Further lines: the first difference, and the likely cause.

  def __str__(self) -> str:
    lines = [f"  {self.check:16}  {self.verdict:8}  {self.detail}"]
    for note in self.notes:
      lines += textwrap.wrap(note, 100, initial_indent=" " * 4, subsequent_indent=" " * 6,
                             break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)
