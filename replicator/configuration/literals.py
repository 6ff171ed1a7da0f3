"""Formats values as gin text. Python writes an infinite float as `inf`, but gin reads `1e999`.

gin cannot read NaN: a default that is NaN is omitted from a text, and stays the default.
"""

import pprint
import re
import sys
from typing import Any


class _Printer(pprint.PrettyPrinter):
  def format(self, value: Any, *how: Any) -> tuple[str, bool, bool]:
    text, *rest = super().format(value, *how)
    if isinstance(value, complex) and not value.real:
      text = f"{value.imag!r}j"  # Python writes -1j as (-0-1j), which gin cannot read.
    is_number = isinstance(value, float | complex)
    return (re.sub(r"\binf", "1e999", text) if is_number else text), *rest  # type: ignore[return-value]


def literal(value: Any, width: int = sys.maxsize) -> str:
  """Formats a value as gin text, in lines of at most `width`; as its `repr` if gin cannot write it.

  Dicts keep their order, which matters for example for nested wrappers of environments.
  """
  return _Printer(width=width, sort_dicts=False).pformat(value)
